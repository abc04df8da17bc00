//! The scenarios of `kills` at a size for every day; `cargo run --release --example kills -p duroxide-cdb` runs them at
//! full size and with as many seeds as wanted.

use crate::kills::{Big, run};

macro_rules! survives {
    ($($name:ident = $big:ident,)+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let mut deaths = 0;
                for seed in 1..=2 {
                    deaths += run(Big::$big.small(), seed, 4).await.unwrap();
                }
                assert!(deaths > 0, "it was over before anything happened");
            }
        )+
    };
}

survives! {
    a_wide_fan_out_survives_the_deaths_of_its_worker = FanOut,
    a_stream_of_messages_survives_the_deaths_of_its_worker = Messages,
    a_large_result_survives_the_deaths_of_its_worker = Result,
    many_children_survive_the_deaths_of_their_worker = Children,
    a_long_history_survives_the_deaths_of_its_worker = History,
}
