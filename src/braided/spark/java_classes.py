"""Java classes of our own, compiled when they are first needed.

Where Spark lets itself be extended by a class and by nothing else, the class is written in Java in
the module that needs it, and compiled by the compiler that Spark has for its own generated code.
"""

from __future__ import annotations

import atexit
import os
import tempfile
import threading
import zipfile
from concurrent.futures import Future
from typing import Any
from weakref import WeakKeyDictionary

from pyspark import SparkContext
from pyspark.sql import SparkSession

from braided.spark.jvm import java_class

__all__ = ["java_object"]

_lock = threading.Lock()
_made: WeakKeyDictionary[SparkContext, dict[str, Future[Any]]] = WeakKeyDictionary()


def java_object(spark: SparkSession, source: str, name: str, ships: bool) -> Future[Any]:
    """An object of a class, the same one whoever asks; `name` is the whole name of a class in the
    source, whose constructor takes nothing.

    It is compiled in a thread of its own, which takes as long as a small batch, while a query
    starts. With `ships` tasks have the class as well: it is added to the session's jars, from where
    executors get it, also those that come later.
    """
    context = spark.sparkContext
    with _lock:
        objects = _made.setdefault(context, {})
        if name in objects:
            return objects[name]
        made: Future[Any] = Future()
        objects[name] = made

    def compile() -> None:
        try:
            compiler = _compiler(context, source)
            loader = _shipped(spark, compiler) if ships else compiler.getClassLoader()
            made.set_result(_new(context, loader, name))
        except BaseException as error:  # told to whoever needs it, and tried anew by the next one
            with _lock:
                objects.pop(name, None)
            made.set_exception(error)

    threading.Thread(target=compile, name="braided compile", daemon=True).start()
    return made


def _shipped(spark: SparkSession, compiler: Any) -> Any:
    """Adds classes to the session's jars; what loads them."""
    classes = compiler.getBytecodes()
    number, path = tempfile.mkstemp(prefix="braided-classes-", suffix=".jar")
    os.close(number)
    atexit.register(_remove, path)
    with zipfile.ZipFile(path, "w") as jar:
        for each in classes.keySet().toArray():
            jar.writestr(f"{each.replace('.', '/')}.class", bytes(classes.get(each)))
    session: Any = spark._jsparkSession
    session.sessionState().resourceLoader().addJar(path)
    return session.sharedState().jarClassLoader()


def _compiler(context: SparkContext, source: str) -> Any:
    jvm: Any = context._jvm
    compiler = java_class(jvm, "org.codehaus.janino.SimpleCompiler")()
    thread = java_class(jvm, "java.lang.Thread").currentThread()
    compiler.setParentClassLoader(thread.getContextClassLoader())
    compiler.cook(source)
    return compiler


def _new(context: SparkContext, loader: Any, name: str) -> Any:
    jvm, gateway = context._jvm, context._gateway
    assert jvm is not None and gateway is not None
    no_types = gateway.new_array(java_class(jvm, "java.lang.Class"), 0)
    no_values = gateway.new_array(java_class(jvm, "java.lang.Object"), 0)
    return loader.loadClass(name).getDeclaredConstructor(no_types).newInstance(no_values)


def _remove(path: str) -> None:
    if os.path.exists(path):
        os.remove(path)
