"""Java classes of ours: compiled when they are first needed, and known to all executors.

Some of what Spark lets a program say can be said in Java only. Such a class is text in a module
here. It is compiled by the compiler that Spark has for its own generated code, and added to the
session's jars, from where executors get it; Braided needs no Java compiler and brings no jar.
"""

from __future__ import annotations

import atexit
import os
import tempfile
import threading
import zipfile
from typing import Any
from weakref import WeakKeyDictionary

from pyspark import SparkContext
from pyspark.sql import SparkSession

from braided.spark.jvm import java_class

__all__ = ["maker_of"]

_lock = threading.Lock()
_makers: WeakKeyDictionary[SparkContext, dict[str, Any]] = WeakKeyDictionary()


def maker_of(spark: SparkSession, name: str, source: str) -> Any:
    """An object of the nested class `Maker` of a class, which makes the others: py4j sees the
    methods of an interface of Java's, and does not find classes that came later than itself.
    Compiled once for each SparkContext.
    """
    with _lock:
        makers = _makers.setdefault(spark.sparkContext, {})
        if name not in makers:
            makers[name] = _compiled(spark, name, source)
        return makers[name]


def _compiled(spark: SparkSession, name: str, source: str) -> Any:
    context = spark.sparkContext
    jvm: Any = context._jvm
    compiler = java_class(jvm, "org.codehaus.janino.SimpleCompiler")()
    thread = java_class(jvm, "java.lang.Thread").currentThread()
    compiler.setParentClassLoader(thread.getContextClassLoader())
    compiler.cook(source)
    classes = compiler.getBytecodes()
    number, path = tempfile.mkstemp(prefix=f"{name.lower()}-", suffix=".jar")
    os.close(number)
    atexit.register(_remove, path)  # executors that come later still fetch it
    with zipfile.ZipFile(path, "w") as jar:
        for each in classes.keySet().toArray():
            jar.writestr(f"{each.replace('.', '/')}.class", bytes(classes.get(each)))
    session: Any = spark._jsparkSession
    session.sessionState().resourceLoader().addJar(path)
    loader = session.sharedState().jarClassLoader()
    no_types = context._gateway.new_array(java_class(jvm, "java.lang.Class"), 0)  # type: ignore[union-attr]
    no_values = context._gateway.new_array(java_class(jvm, "java.lang.Object"), 0)  # type: ignore[union-attr]
    maker = loader.loadClass(f"{name}$Maker").getDeclaredConstructor(no_types)
    return maker.newInstance(no_values)


def _remove(path: str) -> None:
    if os.path.exists(path):
        os.remove(path)
