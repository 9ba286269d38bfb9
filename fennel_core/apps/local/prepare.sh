#!/usr/bin/env bash
# Install the platform's prerequisites, or print one line that names the missing ones.
#
#   prepare.sh system    Python 3.11, Java 17 and Maven: install Debian's packages as root, else print the command to run
#   prepare.sh env       create .venv (platform) and .venv-executor (the client's environment) from requirements/*.lock
#   prepare.sh jars      resolve the Kafka, S3 and Spark jars of fennel_core/apps/local/jars into .fennel/jars
#   prepare.sh jars-mysql  as an extra, what reads MySQL and MariaDB into .fennel/jars/mysql and mysql-changes
#   prepare.sh scan      create .venv-scan (scanners of `make scan`) from requirements/scan.lock
#   prepare.sh lock      compile requirements/*.in to *.lock
#
# Shell, because it runs before a usable Python is known. Every step is idempotent: a stamp holds the hash of its inputs, so a
# second run takes no time.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)"
cd "$ROOT"

HERE=fennel_core/apps/local
TOOLS=.fennel/tools
JARS=.fennel/jars
UV="$TOOLS/uv/bin/uv"
DISK_NEEDED_MIB=6000 # both environments 2.2 GB, uv's and Maven's caches 2 GB, jars 0.3 GB, space for first data

say() { printf '%s\n' "$*"; }
die() {
  printf 'fennel-core: %s\n' "$*" >&2
  exit 1
}

# --- system packages ---------------------------------------------------------------------------------------

python_is_usable() {
  "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' >/dev/null 2>&1
}

# If PYTHON is set, no other interpreter is tried. Debian's is named in full, because a shim may precede it on the PATH.
find_python() {
  local candidate candidates=(python3.11 python3 /usr/bin/python3.11)
  [ -n "${PYTHON:-}" ] && candidates=("$PYTHON")
  for candidate in "${candidates[@]}"; do
    if python_is_usable "$candidate"; then
      printf '%s' "$candidate"
      return 0
    fi
  done
  return 1
}

java_major() {
  local java="java"
  [ -n "${JAVA_HOME:-}" ] && java="$JAVA_HOME/bin/java"
  "$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1
}

java_is_usable() { [ "$(java_major 2>/dev/null || true)" -ge 17 ] 2>/dev/null; }

maven_is_usable() { command -v mvn >/dev/null 2>&1; }

missing_packages() {
  find_python >/dev/null || printf 'python3.11 python3.11-venv '
  java_is_usable || printf 'openjdk-17-jre-headless '
  maven_is_usable || printf 'maven '
}

python_problem() {
  local found
  found="$("${PYTHON:-python3}" --version 2>/dev/null || echo 'none')"
  printf 'Python 3.11 with its venv module is needed but %s is %s' "${PYTHON:-python3}" "$found"
}

ensure_system() {
  local missing log
  missing="$(missing_packages)"
  [ -z "$missing" ] && return 0
  if ! command -v apt-get >/dev/null 2>&1; then
    die "Python 3.11, Java 17 and Maven are needed; missing (Debian's names): ${missing% }. Install them with your system's package manager and run the same command again."
  fi
  if [ "$(id -u)" -ne 0 ]; then
    die "missing: ${missing% }. Run this command, then the same command again: sudo apt-get install -y ${missing% }"
  fi
  say "Installing from Debian's packages: ${missing% }"
  log="$(mktemp)" # as root, a predictable name in /tmp could be a planted symlink
  # shellcheck disable=SC2086 # a list of package names
  if ! { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    rm -f "$log"
    find_python >/dev/null || die "$(python_problem), and the system's packages do not include 3.11. Install it another way and run again with PYTHON=/path/to/python3.11."
    die "apt-get could not install ${missing% } (see its last lines above). Fix the problem and run again."
  fi
  rm -f "$log"
  find_python >/dev/null || die "$(python_problem). Install it and run again with PYTHON=/path/to/python3.11."
  java_is_usable || die "Java 17 or newer is needed but 'java -version' reports $(java_major || echo nothing). Set JAVA_HOME to a newer one."
  maven_is_usable || die "Maven is needed but 'mvn' is not on the PATH. Run apt-get install maven."
}

ensure_disk() {
  local free_mib
  free_mib="$(df -Pm . | awk 'NR == 2 { print $4 }')"
  if [ "$free_mib" -lt "$DISK_NEEDED_MIB" ]; then
    die "the disk of $ROOT has ${free_mib} MiB free, but the installation needs ${DISK_NEEDED_MIB} MiB. Free some space and run again."
  fi
}

# --- stamps -----------------------------------------------------------------------------------------------------------

hash_of() { cat "$@" | sha256sum | cut -d ' ' -f 1; }
is_fresh() { [ -f "$1" ] && [ "$(cat "$1")" = "$2" ]; }

# Two terminals may run this at once: the second waits for the first, then finds everything done.
lock_preparation() {
  mkdir -p "$TOOLS"
  exec 9>"$TOOLS/lock"
  flock -n 9 || { say "Waiting for another preparation to finish"; flock 9; }
}

# --- environments -----------------------------------------------------------------------------------------------------

ensure_uv() {
  local want
  want="$(hash_of requirements/bootstrap.lock)"
  is_fresh "$TOOLS/uv/.made-from" "$want" && [ -x "$UV" ] && return 0
  say "Installing uv into $TOOLS/uv"
  rm -rf "$TOOLS/uv"
  "$(find_python)" -m venv "$TOOLS/uv"
  "$TOOLS/uv/bin/python" -m pip install -q --disable-pip-version-check --require-hashes -r requirements/bootstrap.lock
  printf '%s' "$want" >"$TOOLS/uv/.made-from"
}

# uv reads neither pip's configuration nor, by default, the system's certificates; a mirror set up for pip applies here too.
use_pips_index() {
  local index
  export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-true}"
  [ -n "${UV_DEFAULT_INDEX:-}" ] && return 0
  index="${PIP_INDEX_URL:-$("$TOOLS/uv/bin/python" -m pip config get global.index-url 2>/dev/null || true)}"
  if [ -n "$index" ]; then export UV_DEFAULT_INDEX="$index"; fi
}

venv_is_usable() { "$1/bin/python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' >/dev/null 2>&1; }

make_environment() { # folder, lock file, description
  local venv="$1" lock="$2" what="$3" want
  want="$(hash_of "$lock")"
  if is_fresh "$venv/.made-from" "$want" && venv_is_usable "$venv"; then return 0; fi
  say "Creating $venv ($what)"
  ensure_uv
  use_pips_index
  venv_is_usable "$venv" || "$UV" venv -q --clear --no-python-downloads --python "$(find_python)" "$venv"
  rm -f "$venv/.made-from"
  UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-180}" "$UV" pip sync -q --python "$venv/bin/python" --require-hashes "$lock"
  add_checkout_to_path "$venv"
  printf '%s' "$want" >"$venv/.made-from"
}

# A path file instead of an editable install: no build, no download, and the same in both environments.
add_checkout_to_path() {
  local site
  site="$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
  printf '%s\n' "$ROOT" >"$site/fennel_core.pth"
}

# The packages of the installation, beside the client's: FENNEL_EXECUTOR_REQUIREMENTS names a requirements file. They are resolved
# once, under the client's pins, into a lock file of the installation, which is resolved again when the file or the pins change.
EXECUTOR_LOCK=.fennel/executor-requirements.lock

resolve_executor_requirements() { # prints the lock file of the executors' environment
  local given="${FENNEL_EXECUTOR_REQUIREMENTS:-}" want problem
  if [ -z "$given" ]; then
    [ "$(cat .venv-executor/.requirements 2>/dev/null || echo none)" = none ] \
      || die "the executors' environment has packages of FENNEL_EXECUTOR_REQUIREMENTS, which is not set. Set it as before, or remove .venv-executor to go on without them."
    printf 'requirements/executor.lock'
    return 0
  fi
  { [ -f "$given" ] && [ -r "$given" ]; } || die "FENNEL_EXECUTOR_REQUIREMENTS=$given is not a file that can be read (relative to $ROOT). Name a requirements file, or unset it."
  if grep -nE '^[[:space:]]*(-r|-c|-e|--requirement|--constraint|--editable)' "$given" >&2; then
    die "$given includes other files (lines above), whose changes would not be noticed. Write their packages into it."
  fi
  want="$(hash_of "$given" requirements/executor.lock)"
  if ! is_fresh "$EXECUTOR_LOCK.made-from" "$want" || [ ! -f "$EXECUTOR_LOCK" ]; then
    say "Resolving $given with the client's pins into $EXECUTOR_LOCK" >&2
    ensure_uv >&2
    use_pips_index
    mkdir -p .fennel
    problem="$(mktemp)"
    if ! UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-180}" "$UV" pip compile -q --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
      -c requirements/executor.lock requirements/executor.in "$given" -o "$EXECUTOR_LOCK.new" >/dev/null 2>"$problem"; then
      cat "$problem" >&2
      rm -f "$problem" "$EXECUTOR_LOCK.new"
      die "the packages in $given could not be resolved beside the client's (see above). Ask for versions that agree with requirements/executor.lock, or repeat this if the package index was not reached."
    fi
    rm -f "$problem"
    mv "$EXECUTOR_LOCK.new" "$EXECUTOR_LOCK"
    printf '%s' "$want" >"$EXECUTOR_LOCK.made-from"
  fi
  printf '%s' "$EXECUTOR_LOCK"
}

# Which requirements file the environment was made from: `fennel-core up` compares it with the present one.
record_executor_requirements() {
  local stamp=.venv-executor/.requirements want=none
  [ -n "${FENNEL_EXECUTOR_REQUIREMENTS:-}" ] && want="$(hash_of "$FENNEL_EXECUTOR_REQUIREMENTS")"
  is_fresh "$stamp" "$want" || printf '%s' "$want" >"$stamp"
}

install_command() {
  printf '#!/bin/sh\nexec "%s/.venv/bin/python" -m fennel_core.apps.cli "$@"\n' "$ROOT" >.venv/bin/fennel-core
  chmod 755 .venv/bin/fennel-core
}

ensure_environments() {
  find_python >/dev/null || die "$(python_problem). Run 'make system' or set PYTHON=/path/to/python3.11."
  { venv_is_usable .venv && venv_is_usable .venv-executor; } || ensure_disk
  local executor_lock
  lock_preparation
  make_environment .venv requirements/platform.lock "the platform"
  [ -x .venv/bin/fennel-core ] || install_command
  executor_lock="$(resolve_executor_requirements)" || exit 1
  make_environment .venv-executor "$executor_lock" "the client's environment, in which user code runs"
  record_executor_requirements
}

ensure_scanners() {
  lock_preparation
  make_environment .venv-scan requirements/scan.lock "scanners of the repository"
}

# --- jars -------------------------------------------------------------------------------------------------------------

ensure_jars() {
  local want new="$JARS.new"
  want="$(hash_of "$HERE"/jars/pom.xml "$HERE"/jars/*/pom.xml "$HERE"/jars/jars.sha256)"
  is_fresh "$JARS/.made-from" "$want" && return 0
  java_is_usable || die "Java 17 or newer is needed. Run 'make system'."
  maven_is_usable || die "Maven is needed. Run 'make system'."
  lock_preparation
  say "Resolving Kafka, S3 and Spark jars with Maven into $JARS"
  rm -rf "$new"
  # Maven prints a final colour reset even without colours.
  mvn -q -B -ntp -Dstyle.color=never -f "$HERE/jars/pom.xml" -Dfennel.jars="$ROOT/$new" process-resources 2>&1 | sed 's/\x1b\[[0-9;]*m//g; /^$/d' \
    || die "Maven could not resolve the jars (see its output above). Check that this machine reaches Maven Central, or set a mirror in ~/.m2/settings.xml."
  (cd "$new" && sha256sum --quiet -c "$ROOT/$HERE/jars/jars.sha256") || die "a jar does not match $HERE/jars/jars.sha256. Do not use the repository it came from."
  printf '%s' "$want" >"$new/.made-from"
  rm -rf "$JARS"
  mv "$new" "$JARS"
}

ensure_mysql_jars() { # an extra: `jars` leaves it out, and removes it with the folder
  ensure_jars
  ensure_optional_jars mysql "the JDBC driver of MySQL and MariaDB"
  ensure_optional_jars mysql-changes "Debezium's connectors for MySQL and MariaDB"
}

ensure_optional_jars() { # folder, description
  local what="$1" want to="$JARS/$1" from="$HERE/jars/optional/$1"
  want="$(hash_of "$from"/*)"
  is_fresh "$to/.made-from" "$want" && return 0
  lock_preparation
  say "Resolving $2 with Maven into $to"
  rm -rf "$to"
  mvn -q -B -ntp -Dstyle.color=never -f "$from/pom.xml" -Dfennel.jars="$ROOT/$JARS" process-resources 2>&1 | sed 's/\x1b\[[0-9;]*m//g; /^$/d' \
    || die "Maven could not resolve $2 (see its output above). Check that this machine reaches Maven Central, or set a mirror in ~/.m2/settings.xml."
  (cd "$to" && sha256sum --quiet -c "$ROOT/$from/jars.sha256") || die "a jar of $what does not match $from/jars.sha256. Do not use the repository it came from."
  printf '%s' "$want" >"$to/.made-from"
}

# --- lock files -------------------------------------------------------------------------------------------------------

compile_locks() {
  ensure_uv
  use_pips_index
  local compile=("$UV" pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --custom-compile-command 'make lock')
  "${compile[@]}" requirements/bootstrap.in -o requirements/bootstrap.lock
  "${compile[@]}" requirements/platform.in requirements/dev.in -o requirements/platform.lock
  "${compile[@]}" requirements/executor.in -o requirements/executor.lock
  "${compile[@]}" requirements/scan.in -o requirements/scan.lock
}

case "${1:-}" in
  system) ensure_system ;;
  env) ensure_environments ;;
  jars) ensure_jars ;;
  jars-mysql) ensure_mysql_jars ;;
  scan) ensure_scanners ;;
  lock) compile_locks ;;
  *) die "usage: prepare.sh system | env | jars | jars-mysql | scan | lock" ;;
esac
