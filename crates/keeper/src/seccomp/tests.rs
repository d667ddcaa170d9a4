//! The filter, run instruction by instruction.

use super::*;

const NATIVE: u32 = AUDIT_ARCH;

/// Classic BPF as the kernel runs it, for the few instructions that a filter has.
fn verdict(program: &Program, number: u32, arch: u32, arguments: [u64; 6]) -> u32 {
    let mut data = [0u32; 16];
    data[0] = number;
    data[1] = arch;
    for (at, argument) in arguments.into_iter().enumerate() {
        let bytes = argument.to_ne_bytes();
        data[4 + 2 * at] = u32::from_ne_bytes(bytes[..4].try_into().unwrap());
        data[5 + 2 * at] = u32::from_ne_bytes(bytes[4..].try_into().unwrap());
    }
    let (mut at, mut accumulator) = (0usize, 0u32);
    loop {
        let step = &program[at];
        at += 1;
        let code = u32::from(step.code);
        let holds = match code & !libc::BPF_X {
            _ if code == libc::BPF_RET | libc::BPF_K => return step.k,
            _ if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                accumulator = data[usize::try_from(step.k).unwrap() / 4];
                continue;
            }
            _ if code == libc::BPF_ALU | libc::BPF_AND | libc::BPF_K => {
                accumulator &= step.k;
                continue;
            }
            _ if code == libc::BPF_JMP | libc::BPF_JA => {
                at += usize::try_from(step.k).unwrap();
                continue;
            }
            _ if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => accumulator == step.k,
            _ if code == libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K => accumulator >= step.k,
            _ if code == libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K => accumulator > step.k,
            _ if code == libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K => accumulator & step.k != 0,
            other => panic!("an instruction that no filter of ours has: {other:#x}"),
        };
        at += usize::from(if holds { step.jt } else { step.jf });
    }
}

fn number(call: i64) -> u32 {
    u32::try_from(call).unwrap()
}

const ENOSYS: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned();
const RULED: [i64; 4] = [libc::SYS_clone, libc::SYS_socket, libc::SYS_ioctl, libc::SYS_personality];

#[test]
fn every_call_has_the_verdict_of_the_list() {
    let program = program(false).unwrap();
    for call in (0..2048).chain(0x4000_0000..0x4000_0400).chain([u32::MAX]) {
        if RULED.map(number).contains(&call) {
            continue;
        }
        let listed = ALLOWED.iter().any(|&allowed| number(allowed) == call);
        let expected = if listed { libc::SECCOMP_RET_ALLOW } else { ENOSYS };
        assert_eq!(verdict(&program, call, NATIVE, [0; 6]), expected, "call {call}");
    }
}

#[test]
fn another_architecture_is_killed() {
    let program = program(false).unwrap();
    for call in [0, number(libc::SYS_read), number(libc::SYS_execve), 0x7fff_ffff] {
        let answer = verdict(&program, call, 0x4000_0003, [0; 6]);
        assert_eq!(answer, libc::SECCOMP_RET_KILL_PROCESS, "call {call}");
    }
}

#[test]
fn arguments_decide_where_they_must() {
    let program = program(false).unwrap();
    let ask = |call, arguments| verdict(&program, number(call), NATIVE, arguments);
    let refused = libc::SECCOMP_RET_ERRNO | libc::EAFNOSUPPORT.cast_unsigned();
    let allow = libc::SECCOMP_RET_ALLOW;
    assert_eq!(ask(libc::SYS_socket, [2, 1, 0, 0, 0, 0]), allow);
    assert_eq!(ask(libc::SYS_socket, [16, 3, 0, 0, 0, 0]), allow, "route netlink");
    assert_eq!(ask(libc::SYS_socket, [16, 3, 9, 0, 0, 0]), refused, "audit netlink");
    assert_eq!(ask(libc::SYS_socket, [17, 3, 0, 0, 0, 0]), refused, "packets");
    assert_eq!(ask(libc::SYS_clone, [0x11, 0, 0, 0, 0, 0]), allow);
    assert_eq!(ask(libc::SYS_clone, [0x1000_0011, 0, 0, 0, 0, 0]), ENOSYS, "a user namespace");
    assert_eq!(ask(libc::SYS_ioctl, [1, 0x5413, 0, 0, 0, 0]), allow, "TIOCGWINSZ");
    assert_eq!(ask(libc::SYS_ioctl, [1, 0x5000_940e, 0, 0, 0, 0]), ENOSYS, "a new subvolume");
    assert_eq!(ask(libc::SYS_ioctl, [1, 0x4004_9409, 0, 0, 0, 0]), allow, "a clone of a file");
    let eperm = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
    for high in [0, 1 << 32] {
        assert_eq!(ask(libc::SYS_ioctl, [1, high | 0x5412, 0, 0, 0, 0]), eperm, "TIOCSTI");
        assert_eq!(ask(libc::SYS_ioctl, [1, high | 0x541C, 0, 0, 0, 0]), eperm, "TIOCLINUX");
    }
    assert_eq!(ask(libc::SYS_personality, [0x0040_0000, 0, 0, 0, 0, 0]), ENOSYS);
}

#[test]
fn nesting_adds_its_calls_and_no_other() {
    let (plain, nesting) = (program(false).unwrap(), program(true).unwrap());
    let user = [0x1000_0011, 0, 0, 0, 0, 0];
    for call in 0..1024 {
        let (without, with) =
            (verdict(&plain, call, NATIVE, user), verdict(&nesting, call, NATIVE, user));
        let added = NESTING.iter().any(|&added| number(added) == call);
        assert_eq!(without != with, added, "call {call}");
        assert!(!added || with == libc::SECCOMP_RET_ALLOW, "call {call}");
    }
}

#[test]
fn the_filter_is_short() {
    let program = program(false).unwrap();
    assert!(program.len() < 400, "{} instructions", program.len());
}
