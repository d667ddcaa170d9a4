use proptest::prelude::*;

use super::*;

const TRANSITIONS: [Transition; 10] = [
    Transition::DiskMade,
    Transition::Launched,
    Transition::GuestReady,
    Transition::PauseAsked,
    Transition::ResumeAsked,
    Transition::StopAsked,
    Transition::StartAsked,
    Transition::ComputeGone,
    Transition::DeleteAsked,
    Transition::Gone,
];

fn walk(steps: &[Transition]) -> Result<Phase, Refused> {
    steps.iter().try_fold(Phase::Creating, |phase, &step| next(phase, step))
}

#[test]
fn a_whole_life() {
    use Transition::{
        ComputeGone, DeleteAsked, DiskMade, Gone, GuestReady, Launched, PauseAsked, ResumeAsked,
        StartAsked, StopAsked,
    };
    let boot = [DiskMade, Launched, GuestReady];
    assert_eq!(walk(&boot), Ok(Phase::Running));
    assert_eq!(walk(&[&boot[..], &[PauseAsked, ResumeAsked]].concat()), Ok(Phase::Running));
    let stopped = [&boot[..], &[StopAsked, ComputeGone]].concat();
    assert_eq!(walk(&stopped), Ok(Phase::Stopped));
    assert_eq!(walk(&[&stopped[..], &[StartAsked], &boot].concat()), Ok(Phase::Running));
    assert_eq!(walk(&[&stopped[..], &[DeleteAsked, Gone]].concat()), Ok(Phase::Destroyed));
}

#[test]
fn a_stopped_sandbox_cannot_be_paused_or_resumed() {
    for transition in [Transition::PauseAsked, Transition::ResumeAsked, Transition::StopAsked] {
        let refused = next(Phase::Stopped, transition).unwrap_err();
        assert_eq!(refused, Refused { phase: Phase::Stopped, transition });
    }
}

proptest! {
    #[test]
    fn destroyed_is_terminal_and_delete_works_from_everywhere_else(
        steps in proptest::collection::vec(0usize..TRANSITIONS.len(), 0..40)
    ) {
        let mut phase = Phase::Creating;
        for step in steps {
            let before = phase;
            phase = next(phase, TRANSITIONS[step]).unwrap_or(phase);
            if before == Phase::Destroyed {
                prop_assert_eq!(phase, Phase::Destroyed);
            } else {
                prop_assert_eq!(next(before, Transition::DeleteAsked), Ok(Phase::Deleting));
            }
        }
    }
}
