"""Java's names for Kafka's settings, as Kafka's client in C is told them."""

from __future__ import annotations

import pytest

from braided.errors import OptionError
from braided.sinks.kafka_settings import kafka_settings
from braided.sinks.kafka_transactions import refused

SERVERS = {"kafka.bootstrap.servers": "here:9092"}
LOGIN = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required "
    'username="ann" password="a\\"b c";'
)


def client(**options: str) -> dict[str, str]:
    named = {f"kafka.{name.replace('_', '.')}": value for name, value in options.items()}
    return dict(kafka_settings({**SERVERS, **named, "topic": "t"}).client)


def test_names_that_differ_are_translated_and_others_handed_on() -> None:
    assert client()["bootstrap.servers"] == "here:9092"
    assert client(linger_ms="7")["linger.ms"] == "7"
    assert client(max_request_size="5000000")["message.max.bytes"] == "5001024"
    assert client(buffer_memory="1048576")["queue.buffering.max.kbytes"] == "1024"
    assert client(send_buffer_bytes="9")["socket.send.buffer.bytes"] == "9"
    assert client(acks="-1").keys() == client().keys()
    times = client(delivery_timeout_ms="90000", transaction_timeout_ms="70000")
    assert times["message.timeout.ms"] == times["transaction.timeout.ms"] == "70000"


def test_there_is_memory_for_the_largest_message() -> None:
    large = client(max_request_size="100000000")
    assert int(large["queue.buffering.max.kbytes"]) * 1024 >= int(large["message.max.bytes"])
    small = client(max_request_size="5000000", buffer_memory="1000")
    assert small["queue.buffering.max.kbytes"] == str(-(-5_001_024 // 1024))


def test_who_logs_in_with_java_logs_in_with_c() -> None:
    found = client(sasl_mechanism="SCRAM-SHA-256", sasl_jaas_config=LOGIN)
    assert found["sasl.username"] == "ann" and found["sasl.password"] == 'a"b c'
    assert found["sasl.mechanism"] == "SCRAM-SHA-256" and "sasl.jaas.config" not in found
    stores = client(
        ssl_truststore_type="PEM",
        ssl_truststore_location="/ca.pem",
        ssl_keystore_type="PKCS12",
        ssl_keystore_location="/me.p12",
        ssl_keystore_password="hidden",
        ssl_endpoint_identification_algorithm="",
    )
    assert {name: value for name, value in stores.items() if name.startswith("ssl")} == {
        "ssl.ca.location": "/ca.pem",
        "ssl.keystore.location": "/me.p12",
        "ssl.keystore.password": "hidden",
        "ssl.endpoint.identification.algorithm": "none",
    }


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"transactional_id": "mine"}, "has one of its own"),
        ({"acks": "1"}, "kafka.acks can't be other than all"),
        ({"partitioner_class": "a.B"}, "column `partition`"),
        ({"sasl_jaas_config": "a.Krb5LoginModule required;"}, "PLAIN and SCRAM"),
        ({"ssl_truststore_location": "/a.jks"}, "PEM"),
        ({"ssl_keystore_location": "/a.jks"}, "PKCS12"),
        ({"delivery_timeout_ms": "soon"}, "is a number"),
        ({"buffer_memory": "much"}, "is a number"),
        ({"message_max_bytes": "9"}, "kafka.max.request.size says it"),
        ({"message_timeout_ms": "9"}, "kafka.delivery.timeout.ms says it"),
        ({"queue_buffering_max_kbytes": "9"}, "kafka.buffer.memory says it"),
    ],
)
def test_what_has_no_meaning_in_c_is_refused_with_what_to_do(
    options: dict[str, str], said: str
) -> None:
    with pytest.raises(OptionError, match=said):
        client(**options)


def test_bootstrap_servers_are_needed() -> None:
    with pytest.raises(OptionError, match=r"needs the option kafka.bootstrap.servers"):
        kafka_settings({"topic": "t"})


def test_secrets_are_in_no_text() -> None:
    pytest.importorskip("confluent_kafka")
    login = {"kafka.sasl.jaas.config": LOGIN, "kafka.sasl.mechanism": "PLAIN"}
    settings = kafka_settings({**SERVERS, **login, "kafka.no.such": "x"})
    assert 'a"b c' not in repr(settings)
    assert settings.without_secrets('wrong: a"b c!') == "wrong: ...!"
    assert refused(settings) == 'No such configuration property: "no.such"'
    assert refused(kafka_settings({**SERVERS, **login})) is None
