"""Batches into Kafka, each in one transaction that also says which batch it is.

A transactional producer is known by its id, which is the query's and the sink's. Who begins with an
id ends what others have begun with it: they are fenced, and a transaction that they left open is
aborted, or completed if its commit was on its way. So after `init_transactions` nothing is in
flight, and the number of the newest batch that was committed can be read.

That number is the offset of a consumer group of the same name, which nobody consumes with. It is
committed inside the transaction, together with the rows: it is there if and only if they are. Its
metadata say which attempt at the batch it was, so that a copy of the checkpoint, which would have
the same id and other rows, is told from the original.

Whatever goes wrong on the way, the answer is the same: a new producer, which fences the old one,
and a look at what is committed. That is tried for a while. What can't be put right by trying again
is an error at once.

A producer that has lost a connection is not used for another transaction, and the call that commits
the number is not waited for for long. librdkafka remembers who coordinates a group, also when that
broker has gone and come back, and then waits for it for ever, whatever the timeout says (its issue
5511).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from braided import failpoints
from braided.errors import CheckpointMismatchError, FencedError, PublishError
from braided.sinks.kafka_settings import KafkaSettings

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

__all__ = ["INSTALL", "Committed", "KafkaTransactions", "Message", "is_installed", "refused"]

INSTALL = "pip install 'braided[kafka]'"

T = TypeVar("T")

log = logging.getLogger("braided")

_PAUSE_S = 0.5
_FENCED_MAX = 3
"""So many times others may take the id from us while the checkpoint is ours."""
_ABORT_S = 5.0
_STEP_S = 1.0
_SURE_S = 3.0
"""What looks hopeless at the beginning is believed after so long."""
_MADE_S = 3.0
"""What a broker may take to make a topic by itself."""
_MARK_S = 20.0
"""What the number of a batch may take; it takes milliseconds if the client does not hang."""

_AWAY = ("_TIMED_OUT", "_TIMED_OUT_QUEUE", "_MSG_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN")
"""What is said when no broker answers."""

_CONSEQUENCES = ("_STATE", "_FATAL", "_PURGE_QUEUE", "_PURGE_INFLIGHT")
"""What is said of a transaction that has failed before, for another reason."""

_HOPELESS = {
    "TOPIC_AUTHORIZATION_FAILED": "let the user read and write the topic",
    "CLUSTER_AUTHORIZATION_FAILED": "let the user write idempotently",
    "GROUP_AUTHORIZATION_FAILED": "let the user read the consumer group {name}",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "let the user write with the transactional id {name}",
    "SASL_AUTHENTICATION_FAILED": "correct the user and the password",
    "_AUTHENTICATION": "correct the user and the password",
    "_SSL": "correct the certificates",
    "UNKNOWN_TOPIC_OR_PART": "make the topic, or the partition that rows name",
    "_UNKNOWN_TOPIC": "make the topic",
    "_UNKNOWN_PARTITION": "add the partition that rows name",
    "TOPIC_EXCEPTION": "there can't be a topic of that name",
    "MSG_SIZE_TOO_LARGE": "let the topic have larger messages (max.message.bytes)",
    "_QUEUE_FULL": "set kafka.buffer.memory to more",
    "INVALID_TRANSACTION_TIMEOUT": "make kafka.transaction.timeout.ms less, or the broker's "
    "transaction.max.timeout.ms more",
    "INVALID_RECORD": "the topic is compacted and takes no rows without a key",
    "POLICY_VIOLATION": "the broker has a rule against it",
}
"""What trying again does not put right, and what does."""


_UNKNOWN = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")
"""What a client may say that has not heard yet of what is new; the one that replaces it knows."""


class Message(NamedTuple):
    """A row as Kafka has it."""

    topic: str
    key: bytes | str | None
    value: bytes | str | None
    partition: int
    """-1 where its key says which."""
    headers: list[tuple[str, str | bytes | None]] | None


class Committed(NamedTuple):
    """The newest batch that Kafka has."""

    batch: int
    attempt: str


def _is_hopeless(error: KafkaError | None) -> bool:
    return error is not None and error.name() in _HOPELESS


def is_installed() -> bool:
    """Whether Kafka's client is there."""
    return find_spec("confluent_kafka") is not None


def refused(settings: KafkaSettings) -> str | None:
    """What the client has against settings; None if it takes them. Nothing is connected to."""
    from confluent_kafka import KafkaException, Producer

    nowhere = {"bootstrap.servers": "", "transactional.id": "braided", "log_level": 0}
    try:
        Producer({**settings.client, **nowhere})
    except KafkaException as error:
        return settings.without_secrets(error.args[0].str())
    except ValueError as error:
        return settings.without_secrets(str(error))
    return None


class KafkaTransactions:
    """The transactions of one sink of one query."""

    def __init__(self, settings: KafkaSettings, name: str, check_lease: Callable[[], None]) -> None:
        """`check_lease` raises FencedError if the query has been replaced."""
        self._settings = settings
        self.name = name
        """The transactional id, and the consumer group."""
        self._check_lease = check_lease
        self._producer: Producer | None = None
        self._group: Any = None
        """What transactions are told of the consumer group; None until it was looked at."""
        self._committed: Committed | None = None
        """The newest batch in the topics that were looked at, or that was written."""
        self._looked: set[str] = set()
        self._undelivered: KafkaError | None = None
        self._lost: KafkaError | None = None
        """Why the producer is not to be trusted any more."""

    # -- what is asked of it -----------------------------------------------------------------

    def begin(self) -> None:
        """Fences whoever had the id before."""
        self._retry("nothing was started", self._ready)

    def committed(self, *topics: str) -> Committed | None:
        """The newest batch with rows in any of these topics that is committed."""

        def looked() -> Committed | None:
            self._ready()
            return self._look(set(topics))

        return self._retry("nothing was started", looked)

    def newest(self) -> Committed | None:
        """The newest batch that is remembered, in whatever topic its rows are."""

        def looked() -> Committed | None:
            listed = self._ready().list_topics(timeout=self._settings.patience_s)
            return self._look({name for name, each in listed.topics.items() if each.error is None})

        return self._retry("nothing was started", looked)

    def has_topic(self, topic: str) -> bool:
        """Whether it is there; brokers that make topics by themselves make it now, and say until
        it is made that there is none.
        """
        from confluent_kafka import KafkaException

        def found() -> bool:
            deadline = time.monotonic() + _MADE_S
            while True:
                listed = self._ready().list_topics(topic, self._settings.patience_s)
                error = listed.topics[topic].error
                if error is None:
                    return True
                if error.name() != "UNKNOWN_TOPIC_OR_PART":
                    raise KafkaException(error)  # which is not to say that there is none
                if time.monotonic() > deadline:
                    return False
                time.sleep(_PAUSE_S)

        return self._retry("nothing was started", found)

    def write(
        self,
        batch: int,
        attempt: str,
        rows: Callable[[], Iterable[Message]],
        topics: Callable[[], Iterable[str]],
    ) -> bool:
        """Commits a batch; False if it was committed before.

        `rows` are read once for each try, `topics` are those of the rows.
        """

        def written() -> bool:
            self._ready()
            self._look(set(topics()) - self._looked)
            committed = self._committed
            if committed is not None and committed.batch >= batch:
                # Without an attempt it was somebody who knows that the batch is there.
                if committed.batch > batch or committed.attempt not in ("", attempt):
                    raise self._other_copy(committed, batch)
                return False
            self._send(batch, attempt, rows())
            self._committed = Committed(batch, attempt)
            return True

        return self._retry(f"batch {batch} is committed and not yet in Kafka", written)

    def close(self) -> None:
        """Lets go of the client; a transaction that is open is aborted."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        from confluent_kafka import KafkaException

        with suppress(KafkaException):  # there is none, or who begins next sees to it
            producer.abort_transaction(_ABORT_S)

    # -- one try -----------------------------------------------------------------------------

    def _ready(self) -> Producer:
        """A producer that is the only one with its id."""
        if self._producer is not None:
            self._producer.poll(0)  # it says now what it has noticed meanwhile
            if self._lost is not None:
                self.close()
                self._check_lease()
        if self._producer is None:
            from confluent_kafka import Producer

            self._undelivered = self._group = self._lost = self._committed = None
            self._looked = set()
            settings: dict[str, Any] = {
                **self._settings.client,
                "transactional.id": self.name,
                "log_level": 0,  # what matters is in the errors
                "delivery.report.only.error": True,
                "on_delivery": self._on_delivery,
                "error_cb": self._on_error,
            }
            producer = Producer(settings, logger=log)
            self._take_id(producer)
            self._producer = producer
        return self._producer

    def _take_id(self, producer: Producer) -> None:
        """Fences whoever had the id.

        The call itself can only say that it took too long. Why, a wrong password for one, is told
        to who asks the client for what it has noticed, so it is interrupted for that.
        """
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + self._settings.patience_s
        while True:
            try:
                producer.init_transactions(min(_STEP_S, self._settings.patience_s))
                break
            except KafkaException as error:
                producer.poll(0)
                if not error.args[0].retriable():
                    raise
                now = time.monotonic()
                if _is_hopeless(self._lost):  # unless it was a broker that just went or came
                    deadline = min(deadline, now + _SURE_S)
                if now > deadline:
                    raise (error if self._lost is None else KafkaException(self._lost)) from None
        # What one address of several has said meanwhile is no matter any more.
        producer.poll(0)
        self._lost = None

    def _look(self, topics: Collection[str]) -> Committed | None:
        """What is committed in these topics, as the group remembers it.

        It is asked as its consumer: librdkafka's client for administrators crashes (2.16) when the
        broker does not have the group ready.
        """
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        if not topics and self._group is not None:
            return None
        settings = {
            **self._settings.client,
            "group.id": self.name,
            "isolation.level": "read_committed",
            "log_level": 0,  # that producers' settings are none of its own
        }
        reader = Consumer(settings, logger=log)
        try:
            asked = [TopicPartition(topic, 0) for topic in topics]
            try:
                places = reader.committed(asked, self._settings.patience_s) if asked else []
            except KafkaException as error:
                raise self._unended(error) from None
            for unknown in (p.error for p in places if p.error is not None):
                raise KafkaException(unknown)  # which is not to say that there is none
            found = [Committed(p.offset, p.metadata or "") for p in places if p.offset >= 0]
            self._group = reader.consumer_group_metadata()
        finally:
            reader.close()
        newest = max(found, default=None)
        if newest is not None and (self._committed is None or newest > self._committed):
            self._committed = newest
        self._looked.update(topics)
        return newest

    def _unended(self, error: KafkaException) -> KafkaException:
        """What it means if a broker that answers does not say which batch is committed.

        It does not as long as a transaction with this number is open, and there is none of this id.
        """
        from confluent_kafka import KafkaError, KafkaException

        problem: KafkaError = error.args[0]
        if problem.name() != "_TIMED_OUT":
            return error
        said = (
            f"{problem.str()}. Either no broker answers, or it never ended a transaction of "
            f"{self.name} that it has confirmed, as one may that was ended at once and started "
            "again: kafka-transactions.sh find-hanging names it"
        )
        return KafkaException(KafkaError(problem.code(), said))

    def _send(self, batch: int, attempt: str, rows: Iterable[Message]) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        producer = self._producer
        assert producer is not None
        topics: set[str] = set()
        began = time.monotonic()
        producer.begin_transaction()
        try:
            for row in rows:
                topics.add(row.topic)
                self._produce(producer, row)
            while len(producer):
                self._deliver(producer)
            if not topics:  # then a transaction is nothing to the broker, either
                producer.commit_transaction(self._settings.patience_s)
                return
            if self._lost is not None:
                raise KafkaException(self._lost)
            self._mark(producer, [TopicPartition(t, 0, batch, attempt) for t in sorted(topics)])
            failpoints.reach("transaction-written")
            producer.commit_transaction(self._settings.patience_s)
        except KafkaException as failure:
            error = self._cause(producer, failure, topics)
            took_s = time.monotonic() - began
            name = error.args[0].name()
            if took_s > self._settings.transaction_s and name not in (*_AWAY, *_HOPELESS):
                raise PublishError(
                    f"batch {batch} took {took_s:.0f} s to send, and the broker ends transactions "
                    f"after {self._settings.transaction_s:.0f} s. Set kafka.transaction.timeout.ms "
                    "to more (brokers allow 15 minutes by themselves), or take less into a batch, "
                    "and start the query again: it writes the batch"
                ) from error
            raise error from None

    def _cause(
        self, producer: Producer, error: KafkaException, topics: Iterable[str]
    ) -> KafkaException:
        """Why a transaction failed, where an error says only that it has.

        The client then throws away what it has not sent, takes no more, and tells why to who asks
        it for another step of the transaction. That is aborted in any case, so the step may be any
        but the commit.
        """
        from confluent_kafka import KafkaException, TopicPartition

        if error.args[0].name() not in _CONSEQUENCES:
            return error
        try:
            self._mark(producer, [TopicPartition(topic, 0, 0) for topic in topics][:1])
        except KafkaException as cause:
            return cause
        return error

    def _mark(self, producer: Producer, marks: list[TopicPartition]) -> None:
        """Says in the transaction which batch it is. The call is left alone if it does not end."""
        from confluent_kafka import KafkaError, KafkaException

        patience_s = min(self._settings.patience_s, _MARK_S)
        problems: list[BaseException | None] = []

        def call(group: Any = self._group) -> None:
            try:
                producer.send_offsets_to_transaction(marks, group, patience_s)
                problems.append(None)
            except BaseException as error:
                problems.append(error)

        # One that hangs does not keep the process from ending.
        caller = threading.Thread(target=call, name="braided-kafka-mark", daemon=True)
        caller.start()
        caller.join(patience_s + _ABORT_S)
        if not problems:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the client hangs"))
        if problems[0] is not None:
            raise problems[0]

    def _produce(self, producer: Producer, row: Message) -> None:
        """Hands a row to the client, which may have to send others first, but not for ever."""
        from confluent_kafka import KafkaError, KafkaException

        topic, key, value, partition, headers = row
        deadline = time.monotonic() + self._settings.patience_s
        while True:
            try:
                producer.produce(topic, value, key, partition, headers=headers)
                return
            except BufferError:
                if time.monotonic() > deadline:
                    full = KafkaError(KafkaError._QUEUE_FULL, "there is no room for a row")
                    raise KafkaException(full) from None
                self._deliver(producer)

    def _deliver(self, producer: Producer) -> None:
        """Waits a little for the broker; a message that it did not get is an error."""
        from confluent_kafka import KafkaException

        producer.poll(0.1)
        if self._undelivered is not None:
            raise KafkaException(self._undelivered)

    def _on_delivery(self, error: KafkaError | None, _: object) -> None:
        if error is not None and self._undelivered is None:
            self._undelivered = error

    def _on_error(self, error: KafkaError) -> None:
        if self._lost is None or _is_hopeless(error):
            self._lost = error

    # -- trying again ------------------------------------------------------------------------

    def _retry(self, unless: str, step: Callable[[], T]) -> T:
        """What a step gives, which may fail for a while; `unless` says how things are if not."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + self._settings.patience_s
        fenced = unknown = 0
        while True:
            try:
                return step()
            except KafkaException as error:
                problem: KafkaError = error.args[0]
                said = self._settings.without_secrets(problem.str() or problem.name())
                is_fenced = problem.name() in ("_FENCED", "PRODUCER_FENCED")
                fenced += is_fenced
                self.close()
                self._check_lease()
                if fenced > _FENCED_MAX:
                    raise self._taken() from None
                hint = _HOPELESS.get(problem.name())
                is_unknown = problem.name() in _UNKNOWN
                unknown += is_unknown
                if hint is not None and (unknown > 1 or not is_unknown):
                    raise self._failed(unless, said, hint.format(name=self.name)) from None
                if time.monotonic() > deadline:
                    raise self._failed(unless, said, "see that the broker answers") from None
                log.warning("Kafka: %s; trying again", said)
            except BaseException:
                self.close()
                raise
            if not is_fenced:
                time.sleep(_PAUSE_S)

    def _failed(self, unless: str, said: str, hint: str) -> PublishError:
        return PublishError(
            f"Kafka at {self._settings.client['bootstrap.servers']} has not taken rows: {said}. "
            f"{unless[0].upper()}{unless[1:]}: {hint}, and start the query again, which goes on "
            "from there"
        )

    def _taken(self) -> FencedError:
        return FencedError(
            f"another program uses the transactional id {self.name} again and again, and this "
            "query has its checkpoint: a copy of the checkpoint, most likely. Stop that one"
        )

    def _other_copy(self, committed: Committed, batch: int) -> CheckpointMismatchError:
        return CheckpointMismatchError(
            f"Kafka has batch {committed.batch} of this query already (consumer group "
            f"{self.name}), and not the one that batch {batch} of this checkpoint has: the "
            "checkpoint is an older copy, or another query runs on a copy of it. Use the "
            "checkpoint that goes with the topic, or a new one"
        )
