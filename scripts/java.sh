#!/usr/bin/env bash
# Sees that Spark will find Java 17 or newer; on Debian, as root, installs it when it is missing.
set -euo pipefail

needed=17

# Spark takes $JAVA_HOME/bin/java when JAVA_HOME is set, and the java on the PATH otherwise.
java=java
[[ -z ${JAVA_HOME:-} ]] || java=$JAVA_HOME/bin/java

# Prints the major version of $java: 17 for "17.0.15", 8 for "1.8.0_402"; 0 when there is none.
major() {
  local text
  text=$("$java" -version 2>&1) || { echo 0; return; }
  [[ $text =~ version\ \"(1\.)?([0-9]+) ]] && echo "${BASH_REMATCH[2]}" || echo 0
}

found() { (( $(major) >= needed )); }

describe() {
  local version
  version=$(major)
  if (( version > 0 )); then echo "'$java' is Java $version"; else echo "'$java' does not run"; fi
}

found && exit 0

if [[ -n ${JAVA_HOME:-} ]]; then
  # Installing another one would not help: Spark would still take this one.
  echo "Spark needs Java $needed or newer; JAVA_HOME is set, and $(describe)." >&2
  echo "Point JAVA_HOME at a newer Java, or unset it to use the java on the PATH." >&2
  exit 1
fi

if (( EUID == 0 )) && command -v apt-get >/dev/null; then
  echo "Spark needs Java $needed or newer, and $(describe): installing default-jre-headless"
  export DEBIAN_FRONTEND=noninteractive
  if apt-get update -qq && apt-get install -y -qq default-jre-headless >/dev/null; then
    hash -r
    found && exit 0
  fi
fi

echo "Spark needs Java $needed or newer, and $(describe)." >&2
echo "Install one and run this again. On Debian and Ubuntu: sudo apt-get install default-jre-headless" >&2
echo "On macOS: brew install openjdk@$needed. Anywhere: set JAVA_HOME to where a JDK was unpacked." >&2
exit 1
