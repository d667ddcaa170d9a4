//! `cargo xtask soak`: clients at work while the server, the keeper, launchers and guests are killed
//! at random moments, for as long as it is asked to. What was acknowledged must be so, what was not
//! must be whole or gone, and nothing may be left over. A bounded run of it is a test.
//!
//! The seed that it prints gives the same choices again; the moments are the machine's.

#[path = "soak/builder.rs"]
mod builder;
#[path = "soak/http.rs"]
mod http;
#[path = "soak/leaks.rs"]
mod leaks;
#[path = "soak/ledger.rs"]
mod ledger;
#[path = "soak/resident.rs"]
mod resident;
#[path = "soak/town.rs"]
mod town;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail, ensure};

use builder::Builder;
use http::Client;
use resident::{Resident, Stage};
use town::{Town, kill};

/// Clients at work at the same time, with a sandbox each.
const CLIENTS: u64 = 4;
/// Kills between two looks at everything.
const KILLS_A_ROUND: u32 = 20;
/// DESIGN 3: leaked is gone by then.
const COLLECTED_WITHIN: Duration = Duration::from_secs(30);

/// What to do.
pub(crate) struct Soak<'a> {
    pub(crate) bastide: &'a Path,
    pub(crate) seed: u64,
    /// It ends when either is reached.
    pub(crate) kills: u32,
    pub(crate) within: Duration,
    pub(crate) settings: &'a [&'a str],
    pub(crate) say: &'a (dyn Fn(&str) + Sync),
}

/// What was done.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Tally {
    pub(crate) kills: u32,
    pub(crate) calls: u64,
    pub(crate) sandboxes: u32,
    pub(crate) builds_cut_off: u32,
    pub(crate) slowest_start: Duration,
    pub(crate) slowest_collection: Duration,
}

/// What clients and the killer share.
struct Shared {
    client: Client,
    /// Bare ids of sandboxes whose guest was killed, until they were seen dead.
    casualties: Mutex<BTreeSet<String>>,
    stopping: AtomicBool,
    holding: AtomicBool,
    acting: AtomicU32,
    calls: AtomicU64,
    named: AtomicU32,
    failure: Mutex<Option<String>>,
    /// Those that are over, for their events.
    past: Mutex<Vec<Resident>>,
}

/// Numbers that a seed decides.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// Kills until it is told to stop, and fails at the first thing that is not as it must be.
pub(crate) fn run(soak: &Soak<'_>) -> anyhow::Result<Tally> {
    (soak.say)(&format!("seed {}: cargo xtask soak --seed {}", soak.seed, soak.seed));
    let mut town = Town::found(soak.bastide, soak.settings)?;
    let shared = Shared {
        client: town.client()?,
        casualties: Mutex::default(),
        stopping: AtomicBool::new(false),
        holding: AtomicBool::new(false),
        acting: AtomicU32::new(0),
        calls: AtomicU64::new(0),
        named: AtomicU32::new(0),
        failure: Mutex::default(),
        past: Mutex::default(),
    };
    let mut tally = Tally::default();
    let residents: Vec<Mutex<Resident>> =
        (0..CLIENTS).map(|_| Mutex::new(shared.newcomer())).collect();
    let builder = Builder::new(soak.bastide, town.data(), town.images())?;
    let builder = Mutex::new(builder);
    let done = std::thread::scope(|scope| {
        for (number, resident) in (0..).zip(&residents) {
            let (shared, seed) = (&shared, soak.seed ^ (number + 1));
            scope.spawn(move || work(shared, resident, &mut Dice(seed)));
        }
        let (builds, shared, seed) = (&builder, &shared, soak.seed);
        scope.spawn(move || build(shared, builds, &mut Dice(seed ^ 0xB111D)));
        let all = All { shared, residents: &residents, builder: &builder };
        let done = kill_for_a_while(soak, &mut town, &all, &mut tally);
        shared.stopping.store(true, Ordering::SeqCst);
        done
    });
    tally.calls = shared.calls.load(Ordering::SeqCst);
    tally.sandboxes = shared.named.load(Ordering::SeqCst);
    tally.slowest_start = town.slowest_start;
    tally.builds_cut_off = builder.lock().unwrap_or_else(PoisonError::into_inner).cut_off;
    let done = done.and_then(|()| shared.no_failure());
    let done = done.and_then(|()| end(&mut town, &shared, residents, &mut tally));
    done.with_context(|| format!("seed {}, after {tally:?}\n{}", soak.seed, town.last_words()))?;
    Ok(tally)
}

/// A client: one thing after the other, until there is no more to do.
fn work(shared: &Shared, resident: &Mutex<Resident>, dice: &mut Dice) {
    while !shared.stopping.load(Ordering::SeqCst) {
        shared.acting.fetch_add(1, Ordering::SeqCst);
        if shared.holding.load(Ordering::SeqCst) {
            shared.acting.fetch_sub(1, Ordering::SeqCst);
            pause(5);
            continue;
        }
        let mut resident = resident.lock().unwrap_or_else(PoisonError::into_inner);
        if resident.is_over() && dice.below(3) > 0 {
            shared.retire(std::mem::replace(&mut *resident, shared.newcomer()));
        }
        shared.calls.fetch_add(1, Ordering::SeqCst);
        if let Err(error) = resident.act(shared, dice) {
            shared.fail(&error);
        }
        drop(resident);
        shared.acting.fetch_sub(1, Ordering::SeqCst);
        pause(dice.below(8));
    }
}

/// The client that makes templates. Who kills it is itself.
fn build(shared: &Shared, builder: &Mutex<Builder>, dice: &mut Dice) {
    while !shared.stopping.load(Ordering::SeqCst) {
        shared.acting.fetch_add(1, Ordering::SeqCst);
        if !shared.holding.load(Ordering::SeqCst) {
            let mut builder = builder.lock().unwrap_or_else(PoisonError::into_inner);
            if let Err(error) = builder.act(dice) {
                shared.fail(&error.context("a template"));
            }
        }
        shared.acting.fetch_sub(1, Ordering::SeqCst);
        pause(dice.below(50));
    }
}

/// Everybody who works.
struct All<'a> {
    shared: &'a Shared,
    residents: &'a [Mutex<Resident>],
    builder: &'a Mutex<Builder>,
}

fn kill_for_a_while(
    soak: &Soak<'_>,
    town: &mut Town,
    all: &All<'_>,
    tally: &mut Tally,
) -> anyhow::Result<()> {
    let shared = all.shared;
    let mut dice = Dice(soak.seed);
    let begin = SystemTime::now();
    while tally.kills < soak.kills && begin.elapsed()? < soak.within {
        pause(dice.below(150));
        strike(town, shared, &mut dice, tally)?;
        town.reap()?;
        shared.no_failure()?;
        if tally.kills.is_multiple_of(KILLS_A_ROUND) {
            shared.hold();
            look(town, all, tally)?;
            (soak.say)(&format!("{} kills, {:?}", tally.kills, begin.elapsed()?));
            shared.holding.store(false, Ordering::SeqCst);
        }
    }
    shared.hold();
    look(town, all, tally)
}

/// Kills one of them, or several at once.
fn strike(
    town: &mut Town,
    shared: &Shared,
    dice: &mut Dice,
    tally: &mut Tally,
) -> anyhow::Result<()> {
    let which = dice.below(100);
    let (server, keeper, launcher, guest) = match which {
        0..34 => (true, false, false, false),
        34..46 => (false, true, false, false),
        46..60 => (false, false, true, false),
        60..76 => (false, false, false, true),
        76..82 => (true, true, false, false),
        82..87 => (true, false, true, false),
        87..92 => (true, false, false, true),
        92..96 => (false, true, true, false),
        _ => (true, true, true, true),
    };
    // Half of the time while one begins: that is when the most is half done.
    let newcomer = if dice.below(2) == 0 { town.newcomer()? } else { None };
    if newcomer.is_some() {
        sleep(Duration::from_micros(dice.below(5_000)));
    }
    if guest {
        let guests = town.guests().into_iter().chain(town.waiting()).collect::<Vec<_>>();
        if let Some((bare, pid)) = newcomer.as_ref().or_else(|| choose(&guests, dice)) {
            // Before it dies, so that nobody sees a death without a reason.
            shared.casualties().insert(bare.clone());
            let is_it = |pid| {
                let it = (bare.clone(), pid);
                town.guests().contains(&it) || town.waiting().contains(&it)
            };
            kill(*pid, is_it);
        }
    }
    if launcher && let Some(pid) = choose(&town.launchers()?, dice) {
        kill(*pid, |pid| town.is_keeper(pid));
    }
    if keeper && let Some(pid) = town.keeper()? {
        kill(pid, |pid| town.is_keeper(pid));
    }
    if server {
        town.kill_server()?;
    }
    tally.kills += 1;
    if !town.runs() {
        pause(dice.below(60));
        town.start()?;
    }
    Ok(())
}

fn choose<'a, T>(all: &'a [T], dice: &mut Dice) -> Option<&'a T> {
    let at = dice.below(all.len().max(1) as u64);
    all.get(usize::try_from(at).unwrap_or_default())
}

/// While everybody holds still: what was acknowledged is so, and nothing else is there.
fn look(town: &Town, all: &All<'_>, tally: &mut Tally) -> anyhow::Result<()> {
    let All { shared, residents, builder } = all;
    shared.no_failure()?;
    builder.lock().unwrap_or_else(PoisonError::into_inner).check(&shared.client)?;
    let (mut live, mut running) = (BTreeSet::new(), BTreeSet::new());
    for resident in *residents {
        let mut resident = resident.lock().unwrap_or_else(PoisonError::into_inner);
        // One whose create was never answered is made now.
        while resident.id().is_none() || resident.stage().is_none() {
            resident.check(shared)?;
            if resident.id().is_none() {
                resident.act(shared, &mut Dice(0))?;
            }
        }
        resident.check(shared)?;
        let bare = resident.bare().context("an id")?;
        match resident.stage() {
            Some(Stage::Running | Stage::Paused) => {
                live.insert(bare.clone());
                running.insert(bare);
            }
            Some(Stage::Stopped) => drop(live.insert(bare)),
            Some(Stage::Absent | Stage::Gone) | None => {}
        }
    }
    let listed = shared.client.get("/v1/sandboxes")?.json()?;
    let listed = listed.as_array().context("a list")?.iter();
    let listed = listed.filter(|sandbox| sandbox["state"] != "destroyed");
    let listed: BTreeSet<String> = listed
        .filter_map(|sandbox| Some(sandbox["id"].as_str()?.trim_start_matches("sb-").to_owned()))
        .collect();
    ensure!(listed == live, "listed are {listed:?}, but there are {live:?}");
    let took = nothing_leaked(town, &live, &running)?;
    tally.slowest_collection = tally.slowest_collection.max(took);
    Ok(())
}

fn nothing_leaked(
    town: &Town,
    live: &BTreeSet<String>,
    running: &BTreeSet<String>,
) -> anyhow::Result<Duration> {
    let begin = SystemTime::now();
    loop {
        let found = leaks::leaks(town, live, running)?;
        let took = begin.elapsed()?;
        if found.is_empty() {
            return Ok(took);
        }
        if took > COLLECTED_WITHIN {
            bail!("still there after {COLLECTED_WITHIN:?}:\n  {}", found.join("\n  "));
        }
        pause(50);
    }
}

/// Deletes everything, compares the events, drains the server: then there is nothing.
fn end(
    town: &mut Town,
    shared: &Shared,
    residents: Vec<Mutex<Resident>>,
    tally: &mut Tally,
) -> anyhow::Result<()> {
    for resident in residents {
        let mut resident = resident.into_inner().unwrap_or_else(PoisonError::into_inner);
        resident.end(shared)?;
        shared.retire(resident);
    }
    let none = BTreeSet::new();
    let took = nothing_leaked(town, &none, &none)?;
    tally.slowest_collection = tally.slowest_collection.max(took);
    let past = shared.past.lock().unwrap_or_else(PoisonError::into_inner);
    ledger::check(&shared.client.events()?, &past)?;
    town.drain()?;
    town.reap()?;
    let left = town::control_groups(&town.instance()?);
    ensure!(left.is_empty(), "a drained server left {left:?}");
    Ok(())
}

impl Shared {
    fn newcomer(&self) -> Resident {
        let number = self.named.fetch_add(1, Ordering::SeqCst);
        Resident::new(format!("soak-{number}"), number % 3 != 2)
    }

    fn retire(&self, resident: Resident) {
        self.past.lock().unwrap_or_else(PoisonError::into_inner).push(resident);
    }

    fn casualties(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.casualties.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_casualty(&self, bare: Option<&str>) -> bool {
        bare.is_some_and(|bare| self.casualties().contains(bare))
    }

    /// Seen dead: from now on it must be well again.
    fn absolve(&self, bare: Option<&str>) {
        if let Some(bare) = bare {
            self.casualties().remove(bare);
        }
    }

    /// Waits until no client is in a call.
    fn hold(&self) {
        self.holding.store(true, Ordering::SeqCst);
        while self.acting.load(Ordering::SeqCst) > 0 {
            pause(5);
        }
    }

    fn fail(&self, error: &anyhow::Error) {
        self.stopping.store(true, Ordering::SeqCst);
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(format!("{error:#}"));
    }

    fn no_failure(&self) -> anyhow::Result<()> {
        match self.failure.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            Some(failure) => bail!("{failure}"),
            None => Ok(()),
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "there is no runtime here whose thread it could block"
)]
fn sleep(time: Duration) {
    std::thread::sleep(time);
}

fn pause(milliseconds: u64) {
    sleep(Duration::from_millis(milliseconds));
}
