//! The operating system of a world: its clocks and its entropy.
//!
//! Everything in the process asks the C library for the time (`clock_gettime`) and for randomness (`getrandom`): the
//! standard library for `Instant`, `SystemTime` and the keys of its hash maps, `uuid` for its bytes. Its own number
//! (`getpid`) is part of what a member of the fleet tells, and so of the sizes of requests. This file has
//! symbols of the same names, which the linker prefers to those of the C library. On a thread that is in a world they
//! answer from the world's seed and from tokio's paused clock; on any other they ask the kernel.
//!
//! A process has room for one world: counters of libraries, such as the one that seeds tokio's `select!`, begin at zero
//! once per process, and a run is the same only if they do.
//!
//! The symbols are there on Linux only; elsewhere a world runs, but not twice the same.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// What the wall clock of every world shows first: 2026-01-01 00:00:00 UTC.
pub const WALL_START: Duration = Duration::from_secs(1_767_225_600);
/// What the monotonic clock of every world shows first; not zero, because programs subtract from it.
#[cfg(target_os = "linux")]
const MONOTONIC_START: Duration = Duration::from_secs(1_000_000);

thread_local! {
    static ENTROPY: Cell<Option<u64>> = const { Cell::new(None) };
    /// What a monotonic clock of the standard library shows when the world begins.
    static BEGUN: Cell<Option<Instant>> = const { Cell::new(None) };
    static WALL_SHIFT_MS: Cell<i64> = const { Cell::new(0) };
    /// Millionths by which the wall clock is too fast, and since when.
    static DRIFT: Cell<(i64, Duration)> = const { Cell::new((0, Duration::ZERO)) };
    static IS_ASKING: Cell<bool> = const { Cell::new(false) };
}

/// Puts this thread, for good, into the world of a seed.
pub fn enter(seed: u64) {
    #[cfg(target_os = "linux")]
    symbols::keep();
    ENTROPY.set(Some(mix(seed)));
    BEGUN.set(Some(Instant::now()));
}

/// How far the world is.
#[must_use]
pub fn elapsed() -> Duration {
    // Asking tokio may ask the clock again, before its runtime begins: that is when the world begins.
    if IS_ASKING.replace(true) {
        return Duration::ZERO;
    }
    let is_running = tokio::runtime::Handle::try_current().is_ok();
    let elapsed = match BEGUN.get() {
        Some(begun) if is_running => tokio::time::Instant::now().into_std().duration_since(begun),
        Some(_) | None => Duration::ZERO,
    };
    IS_ASKING.set(false);
    elapsed
}

/// Moves the wall clock of all processes of the world; the server has its own.
pub fn shift_wall_clock(by_ms: i64) {
    WALL_SHIFT_MS.set(WALL_SHIFT_MS.get().saturating_add(by_ms));
}

/// Lets the wall clock of all processes run faster from now on, by so many millionths; what it gained until now it keeps.
pub fn set_drift(ppm: i64) {
    let now = elapsed();
    shift_wall_clock(drifted_ms(now));
    DRIFT.set((ppm, now));
}

/// By how much the wall clock went wrong since it was told to.
fn drifted_ms(now: Duration) -> i64 {
    let (ppm, since) = DRIFT.get();
    let elapsed = i64::try_from(now.saturating_sub(since).as_micros()).unwrap_or(i64::MAX);
    elapsed.saturating_mul(ppm) / 1_000_000_000
}

/// The next eight bytes of the world's entropy; none outside of a world.
#[cfg(target_os = "linux")]
fn entropy() -> Option<u64> {
    let state = ENTROPY.get()?;
    ENTROPY.set(Some(state.wrapping_add(0x9E37_79B9_7F4A_7C15)));
    Some(mix(state))
}

fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// What takes the place of the C library's functions.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)] // Three functions of the C library are replaced; each block says why it is sound.
mod symbols {
    use std::time::Duration;

    use libc::{c_int, c_long, c_uint, c_void, clockid_t, pid_t, size_t, ssize_t, timespec};

    use super::{ENTROPY, MONOTONIC_START, WALL_SHIFT_MS, WALL_START, drifted_ms, elapsed, entropy};

    /// Makes the linker take the symbols below, which nothing in this crate calls.
    pub(super) fn keep() {
        type ClockGettime = unsafe extern "C" fn(clockid_t, *mut timespec) -> c_int;
        type Getrandom = unsafe extern "C" fn(*mut c_void, size_t, c_uint) -> ssize_t;
        type Getpid = extern "C" fn() -> pid_t;
        std::hint::black_box((clock_gettime as ClockGettime, getrandom as Getrandom, getpid as Getpid));
    }

    /// What a clock of the world shows; none for clocks that count processor time.
    fn shown(clock: clockid_t) -> Option<Duration> {
        match clock {
            libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => {
                let now = elapsed();
                let shift = WALL_SHIFT_MS.get().saturating_add(drifted_ms(now));
                let by = Duration::from_millis(shift.unsigned_abs());
                let wall = WALL_START + now;
                Some(if shift < 0 { wall.saturating_sub(by) } else { wall + by })
            }
            libc::CLOCK_MONOTONIC
            | libc::CLOCK_MONOTONIC_COARSE
            | libc::CLOCK_MONOTONIC_RAW
            | libc::CLOCK_BOOTTIME => Some(MONOTONIC_START + elapsed()),
            _ => None,
        }
    }

    /// Takes the place of the C library's function.
    ///
    /// # Safety
    /// As the C library's: `out` is valid for one write.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn clock_gettime(clock: clockid_t, out: *mut timespec) -> c_int {
        let is_in_world = ENTROPY.get().is_some();
        match shown(clock).filter(|_| is_in_world) {
            Some(time) => {
                let time = timespec {
                    tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
                    tv_nsec: c_long::from(time.subsec_nanos()),
                };
                // SAFETY: the caller promises what the C library's function asks for.
                unsafe { out.write(time) };
                0
            }
            // SAFETY: the kernel's call takes these two arguments and checks the pointer itself.
            None => unsafe {
                c_int::try_from(libc::syscall(libc::SYS_clock_gettime, clock, out)).unwrap_or(-1)
            },
        }
    }

    /// Takes the place of the C library's function. In a world it is the number of a process that is always there.
    #[unsafe(no_mangle)]
    extern "C" fn getpid() -> pid_t {
        if ENTROPY.get().is_some() {
            return 1;
        }
        // SAFETY: the kernel's call takes no arguments and cannot fail.
        let number = unsafe { libc::syscall(libc::SYS_getpid) };
        pid_t::try_from(number).unwrap_or(1)
    }

    /// Takes the place of the C library's function.
    ///
    /// # Safety
    /// As the C library's: `buffer` is valid for `length` writes.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn getrandom(buffer: *mut c_void, length: size_t, flags: c_uint) -> ssize_t {
        if ENTROPY.get().is_none() {
            // SAFETY: the kernel's call takes these three arguments and checks the pointer itself.
            let filled = unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) };
            return ssize_t::try_from(filled).unwrap_or(-1);
        }
        if length > 0 {
            // SAFETY: the caller promises that so many bytes can be written; bytes need no alignment, and any value is one.
            let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
            for chunk in bytes.chunks_mut(8) {
                let next = entropy().unwrap_or_default().to_le_bytes();
                chunk.copy_from_slice(&next[..chunk.len()]);
            }
        }
        ssize_t::try_from(length).unwrap_or(ssize_t::MAX)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::SystemTime;

    use super::*;

    /// Each test has a thread of its own, which it may put into a world.
    #[test]
    fn clocks_and_entropy_are_of_the_world() {
        let outside = SystemTime::now();
        assert!(outside.duration_since(SystemTime::UNIX_EPOCH).is_ok_and(|now| now > WALL_START));
        enter(7);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let wall = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        runtime.block_on(async {
            let (instant, before) = (Instant::now(), wall());
            assert_eq!(before, WALL_START);
            tokio::time::sleep(Duration::from_secs(3600)).await;
            assert_eq!(instant.elapsed(), Duration::from_secs(3600));
            assert_eq!(wall() - before, Duration::from_secs(3600));
            shift_wall_clock(-5_000);
            assert_eq!(wall() - before, Duration::from_secs(3595));
            set_drift(1_000);
            tokio::time::sleep(Duration::from_secs(1000)).await;
            assert_eq!(wall() - before, Duration::from_secs(4596), "it gained a second");
            set_drift(0);
            tokio::time::sleep(Duration::from_secs(1000)).await;
            assert_eq!(wall() - before, Duration::from_secs(5596), "and keeps it");
        });
        enter(7);
        let first = uuid::Uuid::new_v4();
        enter(7);
        assert_eq!(uuid::Uuid::new_v4(), first, "uuids come from the seed");
    }
}
