"""Options of `format("kafka")`, which are Java's, as the settings of Kafka's client in C.

Most names are the same. Those that differ are translated, those that make a transaction what it is
belong to the sink, and what only Java has (trust stores of its own format, classes) is refused with
what to write instead. What is left is handed on: the client knows its names and refuses others.

Settings have secrets in them: they are in no message, no repr and no file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from braided.errors import OptionError

__all__ = ["KafkaSettings", "kafka_settings"]

_PREFIX = "kafka."
_SERVERS = "bootstrap.servers"
_TRANSACTION_S = 60.0
_PATIENCE_S = 120.0
_MESSAGE_BYTES = 1_000_000
_BESIDES_BYTES = 1024
"""Room for what a message has besides its key, its value and its headers."""
_MEMORY_BYTES = 64 << 20

_OURS = {
    "transactional.id": "the sink has one of its own, by which it is known again",
    "enable.idempotence": "a transaction is always idempotent",
    "key.serializer": "keys are written as they are: cast the column to string or binary",
    "value.serializer": "values are written as they are: cast the column to string or binary",
    "group.id": "the sink has one of its own, which remembers the batches that are written",
}
_JAVA = {
    "interceptor.classes": "there is no Java in this sink to run them",
    "metric.reporters": "there is no Java in this sink to run them",
    "partitioner.class": "give the rows a column `partition` instead",
    "max.block.ms": "kafka.delivery.timeout.ms says how long a batch is tried",
}
_NAMED_BY_JAVA = {
    "message.max.bytes": "max.request.size",
    "message.timeout.ms": "delivery.timeout.ms",
    "queue.buffering.max.kbytes": "buffer.memory",
}
"""What the sink sets itself, from the setting by which Java's clients say it."""
_RENAMED = {
    "max.request.size": "message.max.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
}
_SECRET = re.compile(r"password|secret|jaas|\.pem$|\.key$|certificate", re.IGNORECASE)
_LOGIN = re.compile(r"(username|password)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|([^\s;]+))")
_MODULES = ("PlainLoginModule", "ScramLoginModule")


@dataclass(frozen=True)
class KafkaSettings:
    """What the client is told, and what the sink itself goes by."""

    client: Mapping[str, str] = field(repr=False)
    """By the names that the client has."""
    transaction_s: float
    """How long the broker lets a transaction be open."""
    patience_s: float
    """How long a batch is tried."""
    message_bytes: int
    """The largest message that is sent."""

    def without_secrets(self, said: str) -> str:
        """A text in which no value of a secret setting is."""
        for name, value in self.client.items():
            if value and _SECRET.search(name):
                said = said.replace(value, "...")
        return said


def kafka_settings(options: Mapping[str, str]) -> KafkaSettings:
    """The settings that options say; OptionError for one that has no meaning here."""
    asked = {
        name.lower().removeprefix(_PREFIX): value
        for name, value in options.items()
        if name.lower().startswith(_PREFIX)
    }
    if not asked.get(_SERVERS):
        raise OptionError("format('kafka') needs the option kafka.bootstrap.servers")
    for name in asked:
        reason = _OURS.get(name) or _JAVA.get(name)
        if reason:
            raise OptionError(f"format('kafka') with exactlyOnce: not kafka.{name}: {reason}")
        if name in _NAMED_BY_JAVA:
            raise OptionError(
                f"format('kafka') with exactlyOnce: not kafka.{name}: "
                f"kafka.{_NAMED_BY_JAVA[name]} says it"
            )
    if asked.pop("acks", "all") not in ("all", "-1"):
        raise OptionError("format('kafka') with exactlyOnce: kafka.acks can't be other than all")
    transaction_s = _number(asked, "transaction.timeout.ms", _TRANSACTION_S * 1000) / 1000
    patience_s = _number(asked, "delivery.timeout.ms", _PATIENCE_S * 1000) / 1000
    message_bytes = int(_number(asked, "max.request.size", _MESSAGE_BYTES))
    memory_bytes = int(_number(asked, "buffer.memory", _MEMORY_BYTES))
    client = {_RENAMED.get(name, name): value for name, value in _secured(asked).items()}
    client["transaction.timeout.ms"] = str(int(transaction_s * 1000))
    client["message.timeout.ms"] = str(int(min(patience_s, transaction_s) * 1000))
    client["message.max.bytes"] = str(message_bytes + _BESIDES_BYTES)
    # A message that is larger than the memory for all would wait for room for ever.
    room_bytes = max(memory_bytes, message_bytes + _BESIDES_BYTES)
    client["queue.buffering.max.kbytes"] = str(math.ceil(room_bytes / 1024))
    # As Java's clients do: who reads a key from its partition finds it where others put it.
    client.setdefault("partitioner", "murmur2_random")
    return KafkaSettings(client, transaction_s, patience_s, message_bytes)


def _number(asked: dict[str, str], name: str, default: float) -> float:
    text = asked.pop(name, None)
    if text is None:
        return default
    if not text.isdigit() or not int(text):
        raise OptionError(f"kafka.{name} is a number, and more than nothing, not {text!r}")
    return float(text)


def _secured(asked: Mapping[str, str]) -> dict[str, str]:
    """The settings with those of security by the names that the client has."""
    settings = dict(asked)
    login = settings.pop("sasl.jaas.config", None)
    if login is not None:
        settings |= _login(login)
    if settings.get("ssl.endpoint.identification.algorithm") == "":
        settings["ssl.endpoint.identification.algorithm"] = "none"
    for store, translate in (("truststore", _trusted), ("keystore", _own_key)):
        parts = {
            name.removeprefix(f"ssl.{store}."): settings.pop(name)
            for name in list(settings)
            if name.startswith(f"ssl.{store}.")
        }
        if parts:
            settings |= translate(parts)
    return settings


def _login(text: str) -> dict[str, str]:
    found = {name: a or b or c for name, a, b, c in _LOGIN.findall(text)}
    if not any(module in text for module in _MODULES) or len(found) < 2:
        raise OptionError(
            "kafka.sasl.jaas.config: only a username and a password can be taken from it, for "
            "PLAIN and SCRAM. For others use the settings of librdkafka, kafka.sasl.kerberos.* or "
            "kafka.sasl.oauthbearer.*"
        )
    return {f"sasl.{name}": re.sub(r"\\(.)", r"\1", value) for name, value in found.items()}


def _trusted(parts: Mapping[str, str]) -> dict[str, str]:
    if "certificates" in parts:
        return {"ssl.ca.pem": parts["certificates"]}
    if parts.get("type", "JKS").upper() == "PEM" and "location" in parts:
        return {"ssl.ca.location": parts["location"]}
    raise OptionError(
        "kafka.ssl.truststore.*: the client of this sink reads certificates as PEM; export them "
        "(keytool -exportcert -rfc) and set kafka.ssl.truststore.type to PEM, or kafka.ssl.ca."
        "location to the file"
    )


def _own_key(parts: Mapping[str, str]) -> dict[str, str]:
    kind = parts.get("type", "JKS").upper()
    if "certificate.chain" in parts and "key" in parts:
        return {"ssl.certificate.pem": parts["certificate.chain"], "ssl.key.pem": parts["key"]}
    if kind == "PEM" and "location" in parts:
        file = parts["location"]
        return {"ssl.certificate.location": file, "ssl.key.location": file}
    if kind == "PKCS12" and "location" in parts:
        named = {"ssl.keystore.location": parts["location"]}
        return named | {f"ssl.keystore.{n}": parts[n] for n in ("password",) if n in parts}
    raise OptionError(
        "kafka.ssl.keystore.*: the client of this sink reads PEM and PKCS12; convert the store "
        "(keytool -importkeystore -deststoretype PKCS12) and set kafka.ssl.keystore.type"
    )
