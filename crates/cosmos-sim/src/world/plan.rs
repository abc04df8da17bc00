//! What a seed means: pure.

use std::time::Duration;

use super::further::Edition;
use super::net::{Cut, Rates};
use super::workload::{Job, Kind};

/// Everything that is decided before a world begins.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed of all that is decided while it runs.
    pub seed: u64,
    /// Processes that work.
    pub processes: usize,
    /// When each process starts.
    pub starts: Vec<Duration>,
    /// How long an activity is locked.
    pub activity_lock: Duration,
    /// Clock error of each process, in milliseconds.
    pub clock_offsets_ms: Vec<i64>,
    /// Regions of the account, the write region first.
    pub regions: Vec<&'static str>,
    /// Physical partitions of the container.
    pub partitions: u32,
    /// How long writes take from region to region.
    pub replication: Duration,
    /// Whether partitions have budgets.
    pub is_throttled: bool,
    /// Whether a write is in all regions before it is answered, so that the loss of one loses nothing.
    pub is_strong: bool,
    /// What is worked on.
    pub(crate) jobs: Vec<Job>,
    /// What happens, in order.
    pub(crate) weather: Vec<(Duration, Event)>,
}

/// Something that happens to a world.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    /// A process dies without a word; another one takes its place after a while.
    Kill { process: usize, back_after: Duration },
    /// A process stands still: nothing leaves it, nothing reaches it.
    Freeze { process: usize, length: Duration },
    /// A process and a region cannot reach each other.
    Cut { process: usize, region: usize, length: Duration, cut: CutKind },
    /// The network treats requests like this from now on.
    Network(Rates),
    /// Each way to a region takes longer from now on.
    Distance { region: usize, distance: Duration },
    /// The wall clocks of all processes jump.
    Jump { by_ms: i64 },
    /// A physical partition splits in two.
    Split { index: usize },
    /// Two neighbouring physical partitions become one.
    Merge { index: usize },
    /// The write region moves, with nothing lost.
    FailOver { region: usize },
    /// A region is unreachable for everybody.
    Outage { region: usize, length: Duration, manner: Manner },
    /// Requests are answered with a status instead of being served.
    Status { code: u16, sub_status: u32, per_thousand: u32, length: Duration },
    /// A process is stopped as by SIGTERM: it hands its slots over. Another one takes its place after a while.
    Leave { process: usize, back_after: Duration },
    /// All processes die at once, and their successors come at once.
    KillAll { back_after: Duration },
    /// The fleet does not hear a process, which reaches all other documents.
    Mute { process: usize, length: Duration },
    /// So many of a thousand rings are lost, and so many arrive twice, from now on.
    Bell { lost: u32, doubled: u32 },
    /// Somebody deletes a document of the fleet.
    Vandal { document: FleetDocument },
    /// The wall clocks of all processes run faster or slower than they should, by so many millionths, from now on.
    Drift { ppm: i64 },
    /// All processes are stopped one after the other, and newer ones take their places.
    Upgrade { pause: Duration },
    /// The write region is lost with no warning, another takes its place at once, and it comes back as one to read from.
    Loss { to: usize, length: Duration, manner: Manner },
}

/// What the fleet keeps in the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FleetDocument {
    Bell,
    Table,
    /// The document of a process.
    Member(usize),
}

/// How a region is unreachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    Refuse,
    Unavailable,
    Hang,
}

/// As [`Cut`], for plans.
pub(crate) type CutKind = Cut;

/// How long the weather lasts; after it everything must come to rest.
pub(crate) const WEATHER: Duration = Duration::from_secs(30);

/// The regions a world may have.
const REGIONS: [&str; 3] = ["east", "west", "north"];

/// The statuses of a bad day, with how often each is met.
const STATUSES: [(u16, u32); 17] = [
    (429, 3200),
    (429, 3084),
    (429, 3088),
    (500, 1),
    (503, 20001),
    (410, 1008),
    (429, 3075),
    (449, 0),
    (503, 0),
    (503, 21008),
    (500, 0),
    (408, 0),
    (410, 0),
    (410, 1002),
    (410, 1007),
    (404, 1002),
    (403, 1008),
];

impl Plan {
    /// The world of a seed. One in eight is calm: nothing goes wrong in it. In one more nothing happens but to the members of
    /// the fleet, so that whatever is late or double is the fleet's fault.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let (is_calm, is_quiet) = (seed.is_multiple_of(8), seed % 8 == 4);
        let processes = random.usize(1..=3);
        let regions = if random.u8(..3) == 0 { random.usize(2..=3) } else { 1 };
        let count = random.usize(2..=6);
        let mut jobs: Vec<Job> = (0..count).map(|number| Job::of(number, &mut random)).collect();
        let is_throttled = !is_calm && !is_quiet && fastrand::Rng::with_seed(seed ^ 0x6275_6467).u8(..6) == 0;
        let mut weather =
            if is_calm || is_quiet { Vec::new() } else { weather(&mut random, processes, regions) };
        // Dice of their own: what was decided before the fleet had weather is decided as it was.
        let mut fleet = fastrand::Rng::with_seed(seed ^ 0x0066_6C65_6574);
        jobs.extend((is_quiet || fleet.bool()).then(|| Job::slow(count, &mut fleet)));
        let mut further = fastrand::Rng::with_seed(seed ^ 0x0066_7572_7468_6572);
        let more = further.usize(0..=3);
        jobs.extend((10..10 + more).map(|number| Job::further(number, is_throttled, &mut further)));
        if is_throttled {
            jobs = jobs.into_iter().map(Job::within_budget).collect();
        }
        let is_strong = regions > 1 && further.bool();
        if !is_calm {
            let events = if is_quiet { fleet.usize(1..=3) } else { fleet.usize(0..=2) };
            weather.extend(fleet_weather(&mut fleet, processes, events));
            if !is_quiet {
                weather.extend(further_weather(&mut further, regions, is_strong));
            }
            // Only upgraded processes can run it, and there is an end to the wait.
            let is_awaited = jobs.iter().any(|job| job.kind == Kind::Upgraded);
            if is_awaited || further.u8(..8) == 0 {
                let pause = Duration::from_millis(further.u64(200..=4_000));
                weather.push((Duration::from_millis(further.u64(0..=12_000)), Event::Upgrade { pause }));
            }
            weather.sort_by_key(|(at, _)| *at);
        }
        let is_staggered = fleet.bool();
        let mut start = |index| {
            let late = if is_staggered && index > 0 { fleet.u64(0..=8_000) } else { 0 };
            Duration::from_millis(late)
        };
        let starts = (0..processes).map(&mut start).collect();
        let activity_lock = Duration::from_secs(if fleet.bool() { 8 } else { 20 });
        Self {
            seed,
            processes,
            starts,
            activity_lock,
            clock_offsets_ms: (0..processes).map(|_| clock_offset(&mut random)).collect(),
            regions: REGIONS[..regions].to_vec(),
            // The least that a container has is one partition's.
            partitions: if is_throttled { 1 } else { random.u32(1..=3) },
            replication: Duration::from_millis(random.u64(0..=300)),
            is_throttled,
            is_strong,
            jobs,
            weather,
        }
    }

    /// What processes are like at first: where an upgrade comes, they are old.
    pub(crate) fn edition(&self) -> Edition {
        let is_upgraded = self.weather.iter().any(|(_, event)| matches!(event, Event::Upgrade { .. }));
        if is_upgraded { Edition::Old } else { Edition::New }
    }

    /// Whether nothing goes wrong in it.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        self.weather.is_empty()
    }

    /// How many parts it has that can be left out, see [`without`](Self::without).
    #[must_use]
    pub fn parts(&self) -> usize {
        self.weather.len() + self.jobs.len()
    }

    /// The same world without some of its parts: first the weather is numbered, then the jobs.
    #[must_use]
    pub fn without(&self, parts: &[usize]) -> Self {
        let keep = |part: usize| !parts.contains(&part);
        let events = self.weather.len();
        let numbered = |from: usize| from..;
        let weather = numbered(0).zip(&self.weather).filter(|(part, _)| keep(*part));
        let jobs = numbered(events).zip(&self.jobs).filter(|(part, _)| keep(*part));
        Self {
            weather: weather.map(|(_, event)| event.clone()).collect(),
            jobs: jobs.map(|(_, job)| job.clone()).collect(),
            ..self.clone()
        }
    }

    /// The plan for people, one part in a line.
    pub fn lines(&self) -> impl Iterator<Item = String> + '_ {
        let head = format!(
            "{} processes (from {:?}, clocks off by {:?} ms), activities locked for {:?}, regions {:?} ({:?} apart), {} \
             partitions{}{}",
            self.processes,
            self.starts,
            self.clock_offsets_ms,
            self.activity_lock,
            self.regions,
            self.replication,
            self.partitions,
            if self.is_throttled { ", throttled" } else { "" },
            if self.is_strong { ", strong" } else { "" }
        );
        let weather = (0..).zip(&self.weather);
        let jobs = (self.weather.len()..).zip(&self.jobs);
        std::iter::once(head)
            .chain(weather.map(|(part, (at, event))| format!("part {part}: at {at:?} {event:?}")))
            .chain(jobs.map(|(part, job)| format!("part {part}: job {} {job:?}", job.instance())))
    }
}

fn clock_offset(random: &mut fastrand::Rng) -> i64 {
    match random.u8(..4) {
        0 => 0,
        1 | 2 => random.i64(-400..=400),
        _ => random.i64(-240_000..=240_000),
    }
}

fn weather(random: &mut fastrand::Rng, processes: usize, regions: usize) -> Vec<(Duration, Event)> {
    let mut events: Vec<(Duration, Event)> = (0..random.usize(1..=6))
        .map(|_| {
            let at = Duration::from_millis(random.u64(0..=WEATHER.as_millis() as u64 / 2));
            (at, event(random, processes, regions))
        })
        .collect();
    // Most worlds have a network that is bad from the beginning.
    if random.u8(..4) > 0 {
        events.push((Duration::ZERO, Event::Network(rates(random))));
    }
    events.sort_by_key(|(at, _)| *at);
    events
}

/// What happens to the members of the fleet, besides what happens to processes.
fn fleet_weather(random: &mut fastrand::Rng, processes: usize, count: usize) -> Vec<(Duration, Event)> {
    (0..count)
        .map(|_| {
            let at = Duration::from_millis(random.u64(0..=WEATHER.as_millis() as u64 / 2));
            let process = random.usize(..processes);
            let back_after = Duration::from_millis(random.u64(100..=8_000));
            let event = match random.u8(..10) {
                0..=2 => Event::Leave { process, back_after },
                3 => Event::KillAll { back_after },
                4 | 5 => Event::Bell { lost: random.u32(..=1000), doubled: random.u32(..=500) },
                6 | 7 => Event::Mute { process, length: Duration::from_millis(random.u64(3_000..=20_000)) },
                8 => Event::Vandal { document: FleetDocument::Table },
                _ if random.bool() => Event::Vandal { document: FleetDocument::Bell },
                _ => Event::Vandal { document: FleetDocument::Member(process) },
            };
            (at, event)
        })
        .collect()
}

/// Clocks that drift, and where nothing is lost by it the loss of a region.
fn further_weather(random: &mut fastrand::Rng, regions: usize, is_strong: bool) -> Vec<(Duration, Event)> {
    let mut weather = Vec::new();
    let at = |random: &mut fastrand::Rng| Duration::from_millis(random.u64(0..=15_000));
    if random.u8(..6) == 0 {
        // Up to one part in a hundred: a broken clock, and not only a bad one.
        weather.push((at(random), Event::Drift { ppm: random.i64(-10_000..=10_000) }));
    }
    if is_strong && random.bool() {
        let manner = [Manner::Refuse, Manner::Unavailable, Manner::Hang][random.usize(..3)];
        let length = Duration::from_millis(random.u64(500..=10_000));
        weather.push((at(random), Event::Loss { to: random.usize(..regions), length, manner }));
    }
    weather
}

fn event(random: &mut fastrand::Rng, processes: usize, regions: usize) -> Event {
    let process = random.usize(..processes);
    let region = random.usize(..regions);
    let seconds =
        |random: &mut fastrand::Rng, most: u64| Duration::from_millis(random.u64(100..=most * 1000));
    match random.u8(..14) {
        0..=2 => Event::Kill { process, back_after: seconds(random, 8) },
        3 => Event::Freeze { process, length: seconds(random, 14) },
        4 => {
            let cut = if random.bool() { Cut::Silent } else { Cut::Refused };
            Event::Cut { process, region, length: seconds(random, 12), cut }
        }
        5 | 6 => Event::Network(rates(random)),
        7 => Event::Distance { region, distance: Duration::from_millis(random.u64(5..=400)) },
        8 => Event::Jump { by_ms: random.i64(-90_000..=90_000) },
        9 => Event::Split { index: random.usize(..4) },
        10 => Event::Merge { index: random.usize(..4) },
        11 if regions > 1 => Event::FailOver { region },
        12 if regions > 1 => {
            let manner = [Manner::Refuse, Manner::Unavailable, Manner::Hang][random.usize(..3)];
            Event::Outage { region, length: seconds(random, 6), manner }
        }
        _ => {
            let (code, sub_status) = STATUSES[random.usize(..STATUSES.len())];
            let length = seconds(random, 6);
            Event::Status { code, sub_status, per_thousand: random.u32(10..=400), length }
        }
    }
}

fn rates(random: &mut fastrand::Rng) -> Rates {
    // Each kind is left out of every other world, so that they are also met one by one.
    let mut rate = |most: u32| if random.bool() { random.u32(0..=most) } else { 0 };
    Rates {
        request_lost: rate(10),
        request_late: rate(10),
        not_sent: rate(40),
        reset_before: rate(30),
        reset_after: rate(40),
        answer_lost: rate(10),
        answer_late: rate(15),
        timeout_after: rate(20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_means_the_same_world() {
        assert_eq!(format!("{:?}", Plan::of(7)), format!("{:?}", Plan::of(7)));
        assert_ne!(format!("{:?}", Plan::of(7)), format!("{:?}", Plan::of(9)));
    }

    #[test]
    fn a_plan_can_be_had_without_any_of_its_parts() {
        let plan = Plan::of(3);
        let none: Vec<usize> = (0..plan.parts()).collect();
        assert_eq!(plan.without(&none).parts(), 0);
        for part in none {
            assert_eq!(plan.without(&[part]).parts(), plan.parts() - 1, "part {part}");
        }
    }

    #[test]
    fn all_weather_and_all_kinds_of_work_occur() {
        let plans: Vec<Plan> = (1..400).map(Plan::of).collect();
        let text: String =
            plans.iter().flat_map(|plan| plan.weather.iter()).map(|(_, e)| format!("{e:?} ")).collect();
        for name in [
            "Kill", "Freeze", "Cut", "Network", "Distance", "Jump", "Split", "Merge", "FailOver", "Outage",
            "Status", "Leave", "KillAll", "Mute", "Bell", "Vandal", "Drift", "Upgrade", "Loss",
        ] {
            assert!(text.contains(name), "{name}");
        }
        for kind in Kind::ALL.into_iter().chain(Kind::FURTHER) {
            assert!(plans.iter().flat_map(|plan| &plan.jobs).any(|job| job.kind == kind), "{kind:?}");
        }
    }
}
