//! The real programs, with a model of our own on loopback: installed once, by the code that installs
//! them for users, from packages that npm fetched. See `scripts/fetch-agents.sh`.

mod claude;
mod codex;
pub(crate) mod desk;
mod hosted;
pub(crate) mod model;
mod opencode;
mod registry;

#[tokio::test]
async fn the_programs_are_in_place() {
    let dir = registry::programs().await;
    for agent in registry::AGENTS {
        let program = dir.join("bin").join(agent);
        let output = tokio::process::Command::new(&program).arg("--version").output();
        let output = String::from_utf8(output.await.unwrap().stdout).unwrap();
        if registry::others().is_some() {
            continue;
        }
        let wanted = agentd::install::package_of(agent).unwrap().version;
        assert!(output.contains(wanted), "{agent}: {output}");
    }
}
