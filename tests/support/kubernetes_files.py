"""What is in deploy/kubernetes, as values."""

from __future__ import annotations

from typing import Any

import yaml

from support.bare import ROOT

__all__ = ["DIRECTORY", "objects", "settings", "texts"]

DIRECTORY = ROOT / "deploy" / "kubernetes"


def objects() -> dict[str, dict[str, Any]]:
    """The objects of the manifest, by their kinds: there is one of each."""
    with (DIRECTORY / "query.yaml").open() as file:
        found = list(yaml.safe_load_all(file))
    assert len({each["kind"] for each in found}) == len(found)
    return {each["kind"]: each for each in found}


def texts() -> dict[str, str]:
    """The files that the driver finds in its directory of settings."""
    return dict(objects()["ConfigMap"]["data"])


def settings() -> dict[str, str]:
    """What spark-defaults.conf says."""
    lines = texts()["spark-defaults.conf"].splitlines()
    return {name: value.strip() for name, value in (line.split(maxsplit=1) for line in lines)}
