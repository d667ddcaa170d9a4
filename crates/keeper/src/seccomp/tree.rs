//! The front of the filter: a search tree over the numbers of system calls that need no look at their
//! arguments. A list of comparisons, one a call, takes the kernel a millisecond to check and translate
//! at every launch; this takes a tenth of that.

use anyhow::{Context, ensure};
use seccompiler::sock_filter;

const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;

/// Allows the calls with these numbers on the architecture `audit_arch`; whatever else comes goes on
/// behind the last instruction.
pub(super) fn allow(numbers: &[u32], audit_arch: u32) -> anyhow::Result<Vec<sock_filter>> {
    let boundaries = boundaries(numbers);
    let mut tree = Vec::new();
    search(&boundaries, Verdict::GoOn, &mut tree)?;
    let mut program = vec![
        load(ARCHITECTURE)?,
        jump(libc::BPF_JEQ, audit_arch, (1, 0))?,
        skip(u32::try_from(tree.len())? + 1)?,
        load(NUMBER)?,
    ];
    // A leaf that goes on knows where the program ends only now.
    let end = tree.len();
    for (at, instruction) in tree.iter_mut().enumerate() {
        if u32::from(instruction.code) == libc::BPF_JMP | libc::BPF_JA {
            instruction.k = u32::try_from(end - at - 1)?;
        }
    }
    program.append(&mut tree);
    Ok(program)
}

#[derive(Clone, Copy)]
enum Verdict {
    Allow,
    GoOn,
}

/// The numbers from which on, up to the next, another verdict holds.
fn boundaries(numbers: &[u32]) -> Vec<(u32, Verdict)> {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut boundaries: Vec<(u32, Verdict)> = Vec::new();
    for number in sorted {
        match boundaries.last_mut() {
            Some((after, _)) if *after == number => *after = number + 1,
            _ => boundaries.extend([(number, Verdict::Allow), (number + 1, Verdict::GoOn)]),
        }
    }
    boundaries
}

/// `below` holds for what is smaller than the first boundary.
fn search(
    boundaries: &[(u32, Verdict)],
    below: Verdict,
    program: &mut Vec<sock_filter>,
) -> anyhow::Result<()> {
    if boundaries.is_empty() {
        program.push(match below {
            Verdict::Allow => instruction(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW)?,
            Verdict::GoOn => skip(0)?,
        });
        return Ok(());
    }
    let (left, right) = boundaries.split_at(boundaries.len() / 2);
    let Some((&(number, verdict), right)) = right.split_first() else { return Ok(()) };
    let node = program.len();
    program.push(jump(libc::BPF_JGE, number, (0, 0))?);
    search(left, below, program)?;
    let distance = program.len() - node - 1;
    ensure!(distance < 256, "the filter's tree is too wide: {distance}");
    program[node].jt = u8::try_from(distance)?;
    search(right, verdict, program)
}

fn load(offset: u32) -> anyhow::Result<sock_filter> {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset)
}

fn skip(distance: u32) -> anyhow::Result<sock_filter> {
    instruction(libc::BPF_JMP | libc::BPF_JA, distance)
}

fn jump(test: u32, value: u32, (jt, jf): (u8, u8)) -> anyhow::Result<sock_filter> {
    let code = libc::BPF_JMP | test | libc::BPF_K;
    Ok(sock_filter { jt, jf, ..instruction(code, value)? })
}

fn instruction(code: u32, k: u32) -> anyhow::Result<sock_filter> {
    let code = u16::try_from(code).context("an instruction's code")?;
    Ok(sock_filter { code, jt: 0, jf: 0, k })
}
