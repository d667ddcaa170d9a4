//! `bastide-keeper --data-dir DIR`: the keeper as a program of its own. Its exit code is 2 for other words.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    match (arguments.next(), arguments.next()) {
        (Some(flag), Some(dir)) if flag == "--data-dir" => {
            keeper::process::main(&PathBuf::from(dir))
        }
        _ => ExitCode::from(2),
    }
}
