//! Many worlds, each in a process of its own, because a process has room for one.

use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// How worlds are run.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// The program that runs one: `program --seed N …`.
    pub program: PathBuf,
    /// How many at once.
    pub at_once: usize,
    /// The bug that is built in on purpose; 0 for none.
    pub mutant: u32,
}

/// What a process with a world in it said.
#[derive(Clone, Debug)]
pub struct Said {
    /// The seed of the world.
    pub seed: u64,
    /// Whether everything held.
    pub is_clean: bool,
    /// All it printed.
    pub text: String,
}

impl Fleet {
    /// Runs one world, without some parts of its plan.
    ///
    /// # Errors
    /// When the program cannot be run.
    pub fn run(&self, seed: u64, without: &[usize]) -> io::Result<Said> {
        let mut command = Command::new(&self.program);
        command.arg("--seed").arg(seed.to_string()).stdin(Stdio::null());
        command.env("SIM_MUTANT", self.mutant.to_string()).env("RUST_LOG", "off");
        if !without.is_empty() {
            let parts: Vec<String> = without.iter().map(usize::to_string).collect();
            command.arg("--without").arg(parts.join(","));
        }
        let output = command.output()?;
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text += &String::from_utf8_lossy(&output.stderr);
        Ok(Said { seed, is_clean: output.status.success(), text })
    }

    /// Runs worlds until one fails or all are done; tells each that is done. The failing world with the lowest seed
    /// among those that were run is returned.
    ///
    /// # Errors
    /// When the program cannot be run.
    pub fn until_failure(
        &self,
        seeds: std::ops::Range<u64>,
        tell: &(dyn Fn(&Said) + Sync),
    ) -> io::Result<Option<Said>> {
        let next = AtomicU64::new(seeds.start);
        let failed: Mutex<Option<Said>> = Mutex::new(None);
        let broken: Mutex<Option<io::Error>> = Mutex::new(None);
        let is_over = || {
            failed.lock().is_ok_and(|failed| failed.is_some())
                || broken.lock().is_ok_and(|broken| broken.is_some())
        };
        std::thread::scope(|scope| {
            for _ in 0..self.at_once.max(1) {
                scope.spawn(|| {
                    while !is_over() {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= seeds.end {
                            return;
                        }
                        match self.run(seed, &[]) {
                            Ok(said) => {
                                tell(&said);
                                if let (false, Ok(mut failed)) = (said.is_clean, failed.lock()) {
                                    let is_first = failed.as_ref().is_none_or(|other| said.seed < other.seed);
                                    if is_first {
                                        *failed = Some(said);
                                    }
                                }
                            }
                            Err(error) => {
                                if let Ok(mut broken) = broken.lock() {
                                    *broken = Some(error);
                                }
                            }
                        }
                    }
                });
            }
        });
        match broken.into_inner().ok().flatten() {
            Some(error) => Err(error),
            None => Ok(failed.into_inner().ok().flatten()),
        }
    }

    /// Leaves out what a failing world does not need to fail: first halves of what is left, then single parts. Returns
    /// the parts that are left out, and what the smallest world says.
    ///
    /// # Errors
    /// When the program cannot be run.
    pub fn shrink(&self, seed: u64, parts: usize) -> io::Result<(Vec<usize>, Option<Said>)> {
        let (mut without, mut smallest): (Vec<usize>, Option<Said>) = (Vec::new(), None);
        let mut size = parts.div_ceil(2).max(1);
        loop {
            let left: Vec<usize> = (0..parts).filter(|part| !without.contains(part)).collect();
            let mut is_smaller = false;
            for chunk in left.chunks(size) {
                let fewer: Vec<usize> = without.iter().chain(chunk).copied().collect();
                let said = self.run(seed, &fewer)?;
                if !said.is_clean {
                    (without, smallest, is_smaller) = (fewer, Some(said), true);
                }
            }
            match (size, is_smaller) {
                (1, false) => {
                    without.sort_unstable();
                    return Ok((without, smallest));
                }
                (1, true) => {}
                (_, _) => size = size.div_ceil(2),
            }
        }
    }
}
