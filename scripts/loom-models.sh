# shellcheck shell=bash
# Sourced by scripts that build loom models: where the models are, and how they are built.
#
# A model is a file tests/loom*.rs of a package. It is compiled with `--cfg loom`, in a target folder of
# its own so that the other builds keep theirs.

loom_model_files() {
  git ls-files --cached --others --exclude-standard -- '*tests/loom*.rs'
}

# Prints "PACKAGE MODEL" for each model in the tree.
loom_models() {
  local file
  loom_model_files | while read -r file; do
    echo "$(sed -nE 's/^name = "(.*)"/\1/p' "${file%tests/loom*}Cargo.toml" | head -n 1) $(basename "$file" .rs)"
  done
}

# Models are searched exhaustively: optimised, but without the slow parts of the release profile.
with_loom() {
  RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom" \
    CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 "$@"
}

# Builds one model and prints the path of its test program.
loom_program() {
  local log
  log=$(with_loom cargo test -p "$1" --release --test "$2" --no-run 2>&1) || { echo "$log" >&2; return 1; }
  echo "$log" | sed -nE 's/^ *Executable .*\((.*)\)$/\1/p'
}
