//! Driver, provider and emulator in one seeded world.
