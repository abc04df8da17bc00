//! A screen of its own for what is drawn again and again: at the end the terminal is as it was.

use std::io::{self, IsTerminal, Read};

use tokio::sync::mpsc;

use super::{Line, writer};

/// The alternate screen, until it is dropped: no cursor, and lines that are too long end at the edge.
#[derive(Debug)]
pub(crate) struct FullScreen {
    /// How the terminal treated keys before.
    #[cfg(unix)]
    keys_before: Option<rustix::termios::Termios>,
}

impl FullScreen {
    /// Takes the terminal over.
    pub(crate) fn enter() -> io::Result<Self> {
        let screen = Self {
            #[cfg(unix)]
            keys_before: single_keys(),
        };
        writer::enter_screen()?;
        Ok(screen)
    }

    /// Draws over what was there; what does not fit is counted in the last line.
    pub(crate) fn draw(&mut self, lines: &[Line]) -> io::Result<()> {
        let height = terminal_size::terminal_size().map_or(24, |(_, height)| usize::from(height.0)).max(2);
        let mut shown = lines.to_vec();
        if lines.len() > height {
            shown.truncate(height - 1);
            shown.push(format!("… and {} lines more", lines.len() - shown.len()).into());
        }
        writer::draw_screen(&shown)
    }
}

impl Drop for FullScreen {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        #[cfg(unix)]
        if let Some(before) = &self.keys_before {
            let _ = rustix::termios::tcsetattr(io::stdin(), rustix::termios::OptionalActions::Now, before);
        }
        let _ = writer::leave_screen();
    }
}

/// What is typed, key by key where the terminal allows it.
#[derive(Debug)]
pub(crate) struct Keys(mpsc::UnboundedReceiver<u8>);

impl Keys {
    /// Listens from now on.
    pub(crate) fn listen() -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        if io::stdin().is_terminal() {
            // The thread ends with the process: reading a terminal cannot be called off.
            std::thread::spawn(move || {
                for key in io::stdin().lock().bytes().map_while(Result::ok) {
                    if sender.send(key).is_err() {
                        return;
                    }
                }
            });
        }
        Self(receiver)
    }

    /// Returns when this key is typed.
    pub(crate) async fn pressed(&mut self, wanted: u8) {
        loop {
            match self.0.recv().await {
                Some(key) if key.eq_ignore_ascii_case(&wanted) => return,
                Some(_) => {}
                // Nobody types.
                None => std::future::pending().await,
            }
        }
    }
}

/// Keys arrive as they are typed and are not echoed; returns how it was before. Ctrl-C stays a signal.
#[cfg(unix)]
fn single_keys() -> Option<rustix::termios::Termios> {
    use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
    let before = tcgetattr(io::stdin()).ok()?;
    let mut single = before.clone();
    single.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
    tcsetattr(io::stdin(), OptionalActions::Now, &single).ok()?;
    Some(before)
}
