//! What happens to a world, event by event; in the end everything is put right again.

use std::collections::VecDeque;
use std::time::Duration;

use cosmos_driver::ItemOptions;
use cosmos_emulator::{Emulator, Failover, FaultRule, Offline, Progression, SplitMode, Verdict};
use tokio::time::{Instant, sleep_until};

use super::World;
use super::further::Edition;
use super::net::{FLEET, Network, ProcessId, VANDAL};
use super::plan::{Event, FleetDocument, Manner, WEATHER};
use super::process::{CONTAINER, DATABASE, Process};
use crate::os;

/// Requests to the old partitions are refused for a moment.
const AT_ONCE: Progression = Progression::Automatic { lock_duration: Duration::from_millis(250) };

/// Something that has to be done later.
#[derive(Clone, Copy, Debug)]
enum Later {
    Start(usize),
    StartAll,
    Online(usize),
    EndRule(u64),
    /// Stops the process in this place, and those after it at such intervals.
    Upgrade(usize, Duration),
    /// A region that was lost is given up: another one is written to.
    FailOver {
        to: usize,
    },
}

/// Lets all weather happen; returns when it is over.
pub(super) async fn run(world: &World<'_>) {
    let begun = Instant::now();
    let mut slots: Vec<Option<Process>> = (0..world.plan.processes).map(|_| None).collect();
    let mut births = Births { next_id: 1, edition: world.plan.edition() };
    let starts = world.plan.starts.iter().enumerate();
    let mut later: Vec<(Instant, Later)> =
        starts.map(|(index, after)| (begun + *after, Later::Start(index))).collect();
    let mut events = world.plan.weather.iter().map(|(at, event)| (begun + *at, event)).peekable();
    let last = world.plan.starts.iter().max().copied().unwrap_or_default() + Duration::from_millis(1);
    let end = begun + if world.plan.is_calm() { last } else { WEATHER };
    loop {
        later.sort_by_key(|(at, _)| *at);
        let due = later.first().map(|(at, _)| *at);
        let next = events.peek().map(|(at, _)| *at);
        let Some(at) = [due, next].into_iter().flatten().min().filter(|at| *at < end) else { break };
        sleep_until(at).await;
        if due == Some(at) {
            let (_, what) = later.remove(0);
            later.extend(
                follow_up(world, &mut slots, &mut births, what).map(|(after, what)| (at + after, what)),
            );
        } else if let Some((_, event)) = events.next() {
            world.trace.line(format_args!("WEATHER {event:?}"));
            later
                .extend(happen(world, &mut slots, event).into_iter().map(|(after, what)| (at + after, what)));
        }
    }
    sleep_until(end).await;
    // The sky clears: whoever is gone comes back.
    world.trace.line(format_args!("WEATHER ends"));
    later.sort_by_key(|(at, _)| *at);
    let mut later: VecDeque<Later> = later.into_iter().map(|(_, what)| what).collect();
    while let Some(what) = later.pop_front() {
        later.extend(follow_up(world, &mut slots, &mut births, what).map(|(_, what)| what));
    }
    os::set_drift(0);
    world.network.heal();
    world.network.emulator().faults().clear();
    // Processes go on until the world ends.
    std::mem::forget(slots);
}

/// What the next process is like.
struct Births {
    next_id: ProcessId,
    edition: Edition,
}

fn follow_up(
    world: &World<'_>,
    slots: &mut [Option<Process>],
    births: &mut Births,
    what: Later,
) -> Option<(Duration, Later)> {
    match what {
        Later::Start(index) => start(world, slots, births, index),
        Later::StartAll => (0..slots.len()).for_each(|index| start(world, slots, births, index)),
        Later::Online(region) => {
            let region = world.plan.regions[region];
            let online = world.network.emulator().regions().bring_online(region);
            world.trace.line(format_args!("{region} is back: {online:?}"));
        }
        Later::EndRule(id) => {
            world.network.emulator().faults().remove(id);
        }
        Later::Upgrade(index, pause) => {
            births.edition = Edition::New;
            let old = slots.get_mut(index)?;
            if let Some(leaving) = old.take() {
                world.trace.line(format_args!("p{} is stopped for an upgrade", leaving.id));
                world.witness.died();
                leaving.leave(&world.network);
            }
            start(world, slots, births, index);
            return Some((pause, Later::Upgrade(index + 1, pause)));
        }
        Later::FailOver { to } => {
            let region = world.plan.regions[to];
            let moved = world.network.emulator().regions().fail_over(region, Failover::Forced);
            world.trace.line(format_args!("write region {region}, by force: {moved:?}"));
        }
    }
    None
}

/// Starts a process in the place of one that is gone.
fn start(world: &World<'_>, slots: &mut [Option<Process>], births: &mut Births, index: usize) {
    if slots[index].is_none() {
        slots[index] = Some(world.start(index, births.next_id, births.edition));
        births.next_id += 1;
    }
}

/// Deletes a document of the fleet.
async fn vandal(network: Network, region: &'static str, id: String) {
    let deleting = async {
        let container = super::observe(&network, region, VANDAL).await?;
        container.delete_item(FLEET, &id, ItemOptions::default()).await?;
        anyhow::Ok(())
    };
    // It may not be there, and the vandal has the same network as everybody.
    let _ = deleting.await;
}

/// Lets an event happen; says what follows and when.
fn happen(world: &World<'_>, slots: &mut [Option<Process>], event: &Event) -> Vec<(Duration, Later)> {
    let emulator = world.network.emulator();
    if let Event::Loss { to, length, manner } = event {
        return lose(world, *to, *length, *manner);
    }
    befall(world, emulator, slots, event).into_iter().collect()
}

/// Loses the write region. It is given up as soon as the service sees it, and what is written after that is elsewhere.
fn lose(world: &World<'_>, to: usize, length: Duration, manner: Manner) -> Vec<(Duration, Later)> {
    let regions = world.network.emulator().regions();
    let writes = regions.write_region();
    let Some(lost) = world.plan.regions.iter().position(|name| *name == writes) else { return Vec::new() };
    // Whoever was away lacks writes even here, and what it lacks would be lost.
    let is_whole = regions.list().iter().all(|region| region.offline.is_none());
    let is_gone =
        lost != to && is_whole && regions.take_offline(world.plan.regions[lost], manner.into()).is_ok();
    if !is_gone {
        return Vec::new();
    }
    vec![(NOTICED_AFTER, Later::FailOver { to }), (NOTICED_AFTER + length, Later::Online(lost))]
}

impl From<Manner> for Offline {
    fn from(manner: Manner) -> Self {
        match manner {
            Manner::Refuse => Self::Refuse,
            Manner::Unavailable => Self::Unavailable,
            Manner::Hang => Self::Hang,
        }
    }
}

/// How long it takes the service to give a region up.
const NOTICED_AFTER: Duration = Duration::from_millis(1_500);

/// Lets an event happen to processes, network or server; says what follows and when.
fn befall(
    world: &World<'_>,
    emulator: &Emulator,
    slots: &mut [Option<Process>],
    event: &Event,
) -> Option<(Duration, Later)> {
    match event {
        Event::Kill { process, back_after } => {
            if let Some(victim) = slots[*process].take() {
                world.trace.line(format_args!("p{} dies", victim.id));
                world.witness.died();
                victim.kill(&world.network);
            }
            Some((*back_after, Later::Start(*process)))
        }
        Event::Leave { process, back_after } => {
            if let Some(leaving) = slots[*process].take() {
                world.trace.line(format_args!("p{} is stopped", leaving.id));
                world.witness.died();
                leaving.leave(&world.network);
            }
            Some((*back_after, Later::Start(*process)))
        }
        Event::KillAll { back_after } => {
            for victim in slots.iter_mut().filter_map(Option::take) {
                world.trace.line(format_args!("p{} dies", victim.id));
                world.witness.died();
                victim.kill(&world.network);
            }
            Some((*back_after, Later::StartAll))
        }
        Event::Mute { process, length } => {
            let id = slots[*process].as_ref()?.id;
            world.network.mute(id, Instant::now() + *length);
            None
        }
        Event::Bell { lost, doubled } => {
            world.network.set_bell(*lost, *doubled);
            None
        }
        Event::Vandal { document } => {
            let id = match document {
                FleetDocument::Bell => "bell".to_owned(),
                FleetDocument::Table => "slots".to_owned(),
                FleetDocument::Member(process) => format!("member:p{}", slots[*process].as_ref()?.id),
            };
            world.network.vandalise();
            tokio::spawn(vandal(world.network.clone(), world.plan.regions[0], id));
            None
        }
        Event::Freeze { process, length } => {
            let id = slots[*process].as_ref()?.id;
            world.network.freeze(id, Instant::now() + *length);
            None
        }
        Event::Cut { process, region, length, cut } => {
            let id = slots[*process].as_ref()?.id;
            world.network.cut(id, world.plan.regions[*region], Instant::now() + *length, *cut);
            None
        }
        Event::Network(rates) => {
            world.network.set_rates(*rates);
            None
        }
        Event::Distance { region, distance } => {
            world.network.set_distance(world.plan.regions[*region], *distance);
            None
        }
        Event::Jump { by_ms } => {
            os::shift_wall_clock(*by_ms);
            None
        }
        Event::Drift { ppm } => {
            os::set_drift(*ppm);
            None
        }
        Event::Upgrade { pause } => Some((Duration::ZERO, Later::Upgrade(0, *pause))),
        Event::Loss { .. } => None,
        Event::Split { index } => {
            let ranges = ranges(world);
            let range = *ranges.get(index % ranges.len().max(1))?;
            let split = emulator.split(DATABASE, CONTAINER, range, SplitMode::Midpoint, AT_ONCE);
            world.trace.line(format_args!("split of {range}: {:?}", split.map(|split| split.phase)));
            None
        }
        Event::Merge { index } => {
            let ranges = ranges(world);
            let first = index % ranges.len().max(1);
            let pair = [*ranges.get(first)?, *ranges.get(first + 1)?];
            let merge = emulator.merge(DATABASE, CONTAINER, pair, AT_ONCE);
            world.trace.line(format_args!("merge of {pair:?}: {:?}", merge.map(|merge| merge.phase)));
            None
        }
        Event::FailOver { region } => {
            let region = world.plan.regions[*region];
            let moved = emulator.regions().fail_over(region, Failover::Planned);
            world.trace.line(format_args!("write region {region}: {moved:?}"));
            None
        }
        Event::Outage { region, length, manner } => {
            let gone = emulator.regions().take_offline(world.plan.regions[*region], (*manner).into());
            gone.ok().map(|()| (*length, Later::Online(*region)))
        }
        Event::Status { code, sub_status, per_thousand, length } => {
            let retry_after = (*code == 429).then(|| Duration::from_millis(u64::from(*per_thousand)));
            let verdict = Verdict::Status { code: *code, sub_status: *sub_status, retry_after };
            let share = f64::from(*per_thousand) / 1000.0;
            let rule = FaultRule::new(verdict)
                .in_container(format!("dbs/{DATABASE}/colls/{CONTAINER}"))
                .with_probability(share, world.plan.seed ^ u64::from(*per_thousand));
            Some((*length, Later::EndRule(emulator.faults().install(rule))))
        }
    }
}

/// The physical partitions of the container, in their order.
fn ranges(world: &World<'_>) -> Vec<u32> {
    let mut reports = world.network.emulator().partitions(DATABASE, CONTAINER).unwrap_or_default();
    reports.sort_by(|a, b| a.min_inclusive.cmp(&b.min_inclusive));
    reports.iter().map(|report| report.id).collect()
}
