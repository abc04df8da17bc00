//! duroxide's stress tests: every orchestration must succeed.

use std::sync::Arc;

use duroxide::provider_stress_tests::StressTestConfig;
use duroxide::provider_stress_tests::large_payload::{
    LargePayloadConfig, run_large_payload_test_with_config,
};
use duroxide::provider_stress_tests::parallel_orchestrations::{
    ProviderStressFactory, run_parallel_orchestrations_test_with_config,
};
use duroxide::providers::Provider;

use crate::world::Store;

#[async_trait::async_trait]
impl ProviderStressFactory for Store {
    async fn create_provider(&self) -> Arc<dyn Provider> {
        Arc::new(self.provider().await)
    }
}

#[tokio::test]
async fn parallel_orchestrations_all_succeed() {
    let config =
        StressTestConfig { duration_secs: 5, wait_timeout_secs: WAIT_SECS, ..StressTestConfig::default() };
    let result = run_parallel_orchestrations_test_with_config(&Store::default(), config).await.unwrap();
    assert_eq!((result.failed, result.completed), (0, result.launched));
    assert!(result.completed > 0);
}

#[tokio::test]
async fn large_payloads_all_succeed() {
    let base = StressTestConfig {
        duration_secs: 5,
        wait_timeout_secs: WAIT_SECS,
        ..LargePayloadConfig::default().base
    };
    let config = LargePayloadConfig { base, ..LargePayloadConfig::default() };
    let result = run_large_payload_test_with_config(&Store::default(), config).await.unwrap();
    assert_eq!((result.failed, result.completed), (0, result.launched));
    assert!(result.completed > 0);
}

/// A slow machine may take its time; what counts is that all of them succeed.
const WAIT_SECS: u64 = 600;
