//! This test binary once more, as a process that can be killed.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::{env, io};

/// The other process; it is killed when this is dropped.
pub(crate) struct Again {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Again {
    /// Starts the test of that full name. That it finds its folder in a variable tells it not to test.
    pub(crate) fn start(test: &str, variable: &str, folder: &Path) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            // With one thread, as on one core, the test's name would stand before the first line it says.
            .args([test, "--exact", "--nocapture", "--test-threads=2"])
            .env(variable, folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, said }
    }

    /// What it says, line by line.
    pub(crate) fn lines(&mut self) -> impl Iterator<Item = String> {
        self.said.by_ref().map_while(Result::ok)
    }

    /// Kills it. What it managed to say before the end can still be read.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }
}

impl Drop for Again {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says a line to the process that started this one, at once.
pub(crate) fn say(line: &str) {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).unwrap();
}
