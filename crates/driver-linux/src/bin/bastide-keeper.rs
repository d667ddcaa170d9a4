//! The keeper as a program of its own, for tests of this crate. Users run `bastide keeper`.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    match (arguments.next(), arguments.next()) {
        (Some(flag), Some(dir)) if flag == "--data-dir" => {
            driver_linux::keeper::main(&PathBuf::from(dir))
        }
        _ => ExitCode::from(2),
    }
}
