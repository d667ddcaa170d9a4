//! Programs that are hard to get rid of.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{AgentProcess, Launch, Line, tree};
use crate::host::Host;

fn host() -> Host {
    Host {
        data_dir: "/nonexistent".into(),
        environment: [("PATH".into(), "/usr/bin:/bin".into())].into(),
        directory: "/".into(),
        tasks: TaskTracker::new(),
        stop: CancellationToken::new(),
        mock_delay: Duration::ZERO,
        deictic: Vec::new(),
    }
}

fn shell(host: &Host, script: &str) -> AgentProcess {
    let launch = Launch {
        program: "/bin/sh".into(),
        arguments: vec!["-c".into(), script.into()],
        env: BTreeMap::new(),
        directory: "/".into(),
    };
    AgentProcess::start(host, &launch).unwrap()
}

/// One that leaves the group, one that loses its parent, one that does both.
const FAMILY: &str =
    "setsid sleep 300 & (sleep 301 &) ; (setsid sleep 302 &) ; echo ready; sleep 303";

#[tokio::test]
async fn killing_a_program_kills_all_that_it_started() {
    let host = host();
    let mut process = shell(&host, FAMILY);
    assert_eq!(process.next_line().await.unwrap(), Some(Line::Text("ready".into())));
    let mark = process.mark.clone();
    assert!(tree::marked(&mark).len() >= 4);
    process.kill().await;
    assert_eq!(tree::marked(&mark), []);

    let mut process = shell(&host, FAMILY);
    process.next_line().await.unwrap();
    let mark = process.mark.clone();
    drop(process);
    let gone = async {
        while !tree::marked(&mark).is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(20), gone).await.expect("dropping it is enough");
    host.tasks.close();
    timeout(Duration::from_secs(20), host.tasks.wait())
        .await
        .expect("its pipes are read to the end");
}

#[tokio::test]
async fn lines_and_the_end_of_standard_error_are_kept() {
    let host = host();
    let script = "read line; echo \"got $line\"; printf 'no end'; i=0; \
        while [ $i -lt 3000 ]; do echo noise $i >&2; i=$((i+1)); done; echo last >&2";
    let mut process = shell(&host, script);
    process.write_line("x").await.unwrap();
    assert_eq!(process.next_line().await.unwrap(), Some(Line::Text("got x".into())));
    assert_eq!(process.next_line().await.unwrap(), Some(Line::Text("no end".into())));
    assert_eq!(process.next_line().await.unwrap(), None);
    assert!(process.wait().await.unwrap().success());
    host.tasks.close();
    host.tasks.wait().await;
    let stderr = process.stderr();
    assert!(stderr.ends_with("noise 2999\nlast") && stderr.len() <= 16 * 1024, "{}", stderr.len());
}

#[tokio::test]
async fn a_program_gets_only_what_is_let_through() {
    let host = host();
    let mut process = shell(&host, "env | cut -d= -f1 | sort | tr '\\n' ' '");
    let Some(Line::Text(names)) = process.next_line().await.unwrap() else { panic!("no line") };
    assert_eq!(names, "BASTIDE_AGENT_PROCESS PATH PWD ");
}
