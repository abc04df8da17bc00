//! `cdb` typed and read back: as a plain process, and on a pseudo terminal.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

/// What a finished process left.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// Standard output, which must be one JSON document.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }

    /// Standard output, which must be one JSON document per line.
    pub(crate) fn json_lines(&self) -> Vec<Value> {
        self.stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
            .collect()
    }

    /// The same, which must have ended like this.
    #[track_caller]
    pub(crate) fn with_code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
        self
    }
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            code: code(output.status),
            stdout: String::from_utf8(output.stdout).expect("text"),
            stderr: String::from_utf8(output.stderr).expect("text"),
        }
    }
}

fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or(-1)
}

/// `cdb` with these arguments and nothing of the tester's environment.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cdb"));
    command.args(args).stdin(Stdio::null());
    for name in ["ENDPOINT", "KEY", "ENTRA", "DATABASE", "CONTAINER"] {
        command.env_remove(format!("COSMOS_{name}")).env_remove(format!("COSMOSDB_{name}"));
    }
    for name in ["AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE", "IDENTITY_ENDPOINT"] {
        command.env_remove(name);
    }
    for name in ["CDB_LOG", "COLUMNS", "NO_COLOR", "CLICOLOR_FORCE", "FORCE_COLOR", "CDB_CONTEXT"] {
        command.env_remove(name);
    }
    command.env("CDB_CONFIG", "/there/are/none.json");
    command
}

/// Runs `cdb` to its end, with these variables.
#[track_caller]
pub(crate) fn run_with(args: &[&str], environment: &[(&str, &str)]) -> Ended {
    command(args).envs(environment.iter().copied()).output().expect("cdb runs").into()
}

/// Runs `cdb` to its end.
#[track_caller]
pub(crate) fn run(args: &[&str]) -> Ended {
    command(args).output().expect("cdb runs").into()
}

/// Runs `cdb`, which must succeed, and returns standard output.
#[track_caller]
pub(crate) fn ok(args: &[&str]) -> String {
    run(args).with_code(0).stdout
}

/// A process that is watched while it runs; killed when dropped.
pub(crate) struct Watched {
    child: Child,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
    seen: String,
}

impl Watched {
    /// Starts `cdb`.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::spawn(&mut command(args))
    }

    fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("cdb starts");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        Self { child, stdout, stderr, seen: String::new() }
    }

    /// Starts `cdb` so that a write beyond a limit fails instead of ending it: as on a disk without room.
    #[cfg(target_os = "linux")]
    pub(crate) fn start_with_signal_ignored(args: &[&str]) -> Self {
        let cdb = command(args);
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(cdb.get_program()).args(cdb.get_args());
        for (name, value) in cdb.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        Self::spawn(shell.stdin(Stdio::null()))
    }

    /// From now on no file of the process may grow: its disk is full.
    #[cfg(target_os = "linux")]
    pub(crate) fn fill_disk(&self) {
        use rustix::process::{Pid, Resource, Rlimit, prlimit};
        let limit = Rlimit { current: Some(1), maximum: Some(1) };
        prlimit(Pid::from_child(&self.child).into(), Resource::Fsize, limit).expect("it is our child");
    }

    /// Reads standard output up to a line that contains the text.
    #[track_caller]
    pub(crate) fn until(&mut self, text: &str) {
        read_until(&mut self.stdout, text, &mut self.seen);
    }

    /// Reads standard output up to a line that contains the text, and returns that line.
    #[track_caller]
    pub(crate) fn line_with(&mut self, text: &str) -> String {
        self.until(text);
        self.seen.lines().last().unwrap_or_default().to_owned()
    }

    /// Reads what a demo says until a workflow has done so many steps: those done at once share a line.
    #[track_caller]
    pub(crate) fn until_step(&mut self, workflow: &str, steps: u32) {
        let begin = format!("{workflow:<8} step ");
        let done = |line: &str| line.split_once(&begin)?.1.split_whitespace().next()?.parse::<u32>().ok();
        while done(&self.line_with(&begin)).is_none_or(|done| done < steps) {}
    }

    /// Reads standard error up to a line that contains the text.
    #[track_caller]
    pub(crate) fn until_told(&mut self, text: &str) {
        read_until(&mut self.stderr, text, &mut self.seen);
    }

    /// Ctrl-C.
    pub(crate) fn interrupt(&self) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().expect("kill runs").success());
    }

    /// `kill -9`.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }

    /// Stops reading standard output: whoever writes there meets a broken pipe.
    pub(crate) fn hang_up(mut self) -> Ended {
        drop(self.stdout);
        let mut stderr = String::new();
        self.stderr.read_to_string(&mut stderr).expect("text");
        Ended { code: code(self.child.wait().expect("it ends")), stdout: self.seen, stderr }
    }

    /// Waits for the end, which must come within this time.
    #[track_caller]
    pub(crate) fn end_within(mut self, limit: Duration) -> Ended {
        let began = Instant::now();
        let mut stdout = std::mem::take(&mut self.seen);
        self.stdout.read_to_string(&mut stdout).expect("text");
        let mut stderr = String::new();
        self.stderr.read_to_string(&mut stderr).expect("text");
        let ended = Ended { code: code(self.child.wait().expect("it ends")), stdout, stderr };
        assert!(began.elapsed() < limit, "it took {:?}: {ended:#?}", began.elapsed());
        ended
    }
}

#[track_caller]
fn read_until(source: &mut impl BufRead, text: &str, seen: &mut String) {
    loop {
        let start = seen.len();
        let read = source.read_line(seen).expect("text");
        assert!(read > 0, "it ended before it said {text:?}: {seen}");
        if seen[start..].contains(text) {
            return;
        }
    }
}

/// Runs `cdb` on a pseudo terminal of this width and returns everything it drew.
#[cfg(unix)]
pub(crate) fn on_terminal(args: &[&str], columns: u16) -> (i32, String) {
    Terminal::start(args, columns, 40).end()
}

/// `cdb` on a pseudo terminal; killed when dropped.
#[cfg(unix)]
pub(crate) struct Terminal {
    child: Child,
    /// Both ends: what we hold, and what the process has.
    master: File,
    slave: File,
    arriving: Receiver<Vec<u8>>,
    drawn: Vec<u8>,
    /// How much of it has been looked at.
    seen: usize,
}

#[cfg(unix)]
impl Terminal {
    /// Starts `cdb` on a terminal of this size.
    pub(crate) fn start(args: &[&str], columns: u16, rows: u16) -> Self {
        use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&master).expect("ours");
        unlockpt(&master).expect("open");
        let name = ptsname(&master, Vec::new()).expect("a name");
        let slave =
            File::options().read(true).write(true).open(name.to_str().expect("a path")).expect("it opens");
        let master = File::from(master);
        set_size(&master, columns, rows);
        let copy = || slave.try_clone().expect("a copy");
        let child = command(args).stdin(copy()).stdout(copy()).stderr(copy()).spawn().expect("cdb starts");
        let (sender, arriving) = channel();
        let mut reader = master.try_clone().expect("a copy");
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The last writer has gone when reading fails: that is how a terminal ends.
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, master, slave, arriving, drawn: Vec::new(), seen: 0 }
    }

    /// The next drawing of the whole screen that is as wanted, without colours.
    #[track_caller]
    pub(crate) fn frame(&mut self, mut is_wanted: impl FnMut(&str) -> bool) -> String {
        let began = Instant::now();
        loop {
            while let Some((frame, length)) = whole_frame(&self.drawn[self.seen..]) {
                self.seen += length;
                if is_wanted(&frame) {
                    return frame;
                }
            }
            match self.arriving.recv_timeout(PATIENCE.saturating_sub(began.elapsed())) {
                Ok(bytes) => self.drawn.extend(bytes),
                Err(_) => panic!("no such frame: {}", String::from_utf8_lossy(&self.drawn)),
            }
        }
    }

    /// Everything that was told, without colours, once this is among it.
    #[track_caller]
    pub(crate) fn told_until(&mut self, text: &str) -> String {
        let began = Instant::now();
        loop {
            let told = plain(&String::from_utf8_lossy(&self.drawn));
            if told.contains(text) {
                return told;
            }
            match self.arriving.recv_timeout(PATIENCE.saturating_sub(began.elapsed())) {
                Ok(bytes) => self.drawn.extend(bytes),
                Err(_) => panic!("{text:?} is not told: {told}"),
            }
        }
    }

    /// Presses keys.
    pub(crate) fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).expect("it takes keys");
    }

    /// Changes the size, and tells the process so.
    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        set_size(&self.master, columns, rows);
        self.signal("-WINCH");
    }

    /// Sends a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().expect("kill runs").success());
    }

    /// Whether keys arrive line by line and are echoed: as a shell expects it.
    pub(crate) fn is_ordinary(&self) -> bool {
        use rustix::termios::{LocalModes, tcgetattr};
        let modes = tcgetattr(&self.slave).expect("a terminal").local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }

    /// Waits until the process has ended; the terminal stays.
    pub(crate) fn wait(&mut self) -> i32 {
        code(self.child.wait().expect("it ends"))
    }

    /// Waits for the end; the code, and everything that was drawn.
    pub(crate) fn end(mut self) -> (i32, String) {
        let code = self.wait();
        let Self { slave, arriving, mut drawn, .. } = self;
        drop(slave);
        drawn.extend(arriving.iter().flatten());
        (code, String::from_utf8_lossy(&drawn).into_owned())
    }
}

#[cfg(unix)]
fn set_size(terminal: &File, columns: u16, rows: u16) {
    let size = rustix::termios::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(terminal, size).expect("a size");
}

/// The first drawing that is complete, and where it ends: from the upper left corner until the rest is cleared.
#[cfg(unix)]
fn whole_frame(drawn: &[u8]) -> Option<(String, usize)> {
    let text = String::from_utf8_lossy(drawn);
    let from = text.find("\u{1b}[H")?;
    let to = from + text[from..].find("\u{1b}[J")?;
    Some((plain(&text[from..to]), to))
}

#[cfg(unix)]
const PATIENCE: Duration = Duration::from_secs(60);

/// A command that is to end has ended by then, whatever else the machine does.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// The lines of a terminal without colours.
pub(crate) fn plain(drawn: &str) -> String {
    let mut plain = String::new();
    let mut characters = drawn.chars();
    while let Some(character) = characters.next() {
        if character == '\u{1b}' {
            // A sequence ends with its first letter.
            let _ = characters.by_ref().find(char::is_ascii_alphabetic);
        } else {
            plain.push(character);
        }
    }
    plain
}
