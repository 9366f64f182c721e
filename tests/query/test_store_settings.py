"""What a client of a bucket is told, by what a session tells Hadoop's file systems."""

from __future__ import annotations

import pytest

from braided.spark.store_settings import _of_s3

LOCAL = {"endpoint": "localhost:9000"}
SAFE = {"endpoint": "https://localhost:9000", "region": "us-east-1"}
PLAIN = {"endpoint": "http://localhost:9000", "region": "us-east-1"}
KEYS = {"access.key": "a", "secret.key": "b", "session.token": "c"}
ANONYMOUS = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"


@pytest.mark.parametrize(
    ("hadoop", "told"),
    [
        pytest.param({}, {}, id="nothing, so that the environment is asked"),
        pytest.param(
            KEYS, {"access_key_id": "a", "secret_access_key": "b", "session_token": "c"}, id="keys"
        ),
        pytest.param({"access.key": ""}, {}, id="what is empty is not said"),
        pytest.param(LOCAL, SAFE, id="an endpoint without a scheme"),
        pytest.param({**LOCAL, "connection.ssl.enabled": "FALSE"}, PLAIN, id="and without SSL"),
        pytest.param({"endpoint": "http://localhost:9000"}, PLAIN, id="an endpoint with a scheme"),
        pytest.param(
            {"endpoint": "https://localhost:9000", "connection.ssl.enabled": "false"},
            SAFE,
            id="whose scheme says more",
        ),
        pytest.param(
            {**LOCAL, "endpoint.region": "eu-central-1"},
            {**SAFE, "region": "eu-central-1"},
            id="an endpoint and its region",
        ),
        pytest.param({"endpoint": "s3.amazonaws.com"}, {}, id="Amazon's, which Spark sets"),
        pytest.param(
            {"endpoint": "s3.amazonaws.com", "endpoint.region": "eu-central-1"},
            {"region": "eu-central-1"},
            id="Amazon's in a region",
        ),
        pytest.param(
            {"aws.credentials.provider": ANONYMOUS}, {"skip_signature": "true"}, id="anonymous"
        ),
        pytest.param(
            {**KEYS, **LOCAL, "bucket.trades.access.key": "A", "bucket.other.secret.key": "B"},
            {**SAFE, "access_key_id": "A", "secret_access_key": "b", "session_token": "c"},
            id="a bucket's own, which win",
        ),
        pytest.param(
            {**LOCAL, "bucket.trades.connection.ssl.enabled": "false"}, PLAIN, id="without SSL"
        ),
        pytest.param(
            {**LOCAL, "bucket.trades.endpoint": "s3.amazonaws.com"}, {}, id="Amazon's for a bucket"
        ),
        pytest.param(
            {"bucket.trades.aws.credentials.provider": f"x.Y,{ANONYMOUS}"},
            {"skip_signature": "true"},
            id="a bucket that is open to all",
        ),
    ],
)
def test_a_session_s_settings_for_s3_are_those_of_the_client(
    hadoop: dict[str, str], told: dict[str, str]
) -> None:
    settings = {f"fs.s3a.{name}": value for name, value in hadoop.items()}
    assert _of_s3("trades", settings.get) == told
