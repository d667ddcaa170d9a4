//! The attacks of `bastide doctor`: they fail against a sandbox, and work where there is none.

mod needs_root {
    use std::process::Command;

    use driver_linux::doctor::{DoctorConfig, Outcome, Row, attack};
    use tokio_util::sync::CancellationToken;

    use crate::host::Host;

    const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/doctor/inside.py");

    fn config(host: &Host) -> DoctorConfig {
        DoctorConfig {
            temp_dir: host.path().to_owned(),
            runtime_dir: host.path().join("runtime"),
            weaknesses: Vec::new(),
        }
    }

    #[tokio::test]
    async fn no_attack_gets_through_and_nothing_is_left() {
        let host = Host::new();
        let mut told = 0;
        let mut on_row = |_: &Row| told += 1;
        let rows = attack(&config(&host), &CancellationToken::new(), &mut on_row).await.unwrap();
        let bad: Vec<&Row> = rows
            .iter()
            .filter(|row| matches!(row.outcome, Outcome::Broken | Outcome::Skipped))
            .collect();
        assert!(bad.is_empty(), "{bad:#?}");
        let weak: Vec<&str> = rows
            .iter()
            .filter(|row| row.outcome == Outcome::Weak)
            .map(|row| row.what.as_str())
            .collect();
        assert!(weak.iter().all(|what| *what == "file locks"), "only that is known: {weak:?}");
        assert!(rows.len() > 50 && told == rows.len(), "{} rows", rows.len());
    }

    /// Those that harm nothing where they work.
    #[test]
    fn the_attacks_work_where_there_is_no_wall() {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("mark");
        std::fs::write(&mark, "of the host").unwrap();
        let mark = mark.to_str().unwrap();
        let decoy = std::process::id().to_string();
        let attacks: &[(&str, &[&str])] = &[
            ("host_files", &[mark]),
            ("host_processes", &[&decoy]),
            ("proc_writes", &[]),
            ("sys_writes", &[]),
            ("told", &[mark]),
            ("namespaces", &[]),
            ("capabilities", &[]),
            ("keyrings", &[]),
            ("sockets", &[]),
            ("user_map", &[]),
        ];
        for (name, arguments) in attacks {
            let command = Command::new("python3").arg(PROGRAM).arg(name).args(*arguments).output();
            let output = String::from_utf8(command.unwrap().stdout).unwrap();
            let worked = output.starts_with("BROKEN ") && !output.contains("itself failed");
            assert!(worked, "{name}: {output}");
        }
    }
}
