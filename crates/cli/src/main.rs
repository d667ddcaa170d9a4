//! The binary `bastide`. Everything is in the library, so that tests can reach it.

fn main() -> std::process::ExitCode {
    cli::main()
}
