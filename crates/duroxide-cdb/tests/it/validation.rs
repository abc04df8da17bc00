//! duroxide's own validation functions, one test each, every one on a container of its own.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use duroxide::provider_validation;
use futures::FutureExt as _;

use crate::world::Store;

macro_rules! suite {
    ($module:ident { $($name:ident = $function:ident,)+ }) => {
        suite!($module, $module, default { $($name = $function,)+ });
    };
    ($suite:ident, $module:ident, $store:ident { $($name:ident = $function:ident,)+ }) => {
        mod $suite {
            use super::*;
            $(
                #[tokio::test]
                async fn $name() {
                    provider_validation::$module::$function(&Store::$store()).await;
                }
            )+
        }
    };
    ($suite:ident, $module:ident, $store:ident, hurried { $($name:ident = $function:ident,)+ }) => {
        mod $suite {
            use super::*;
            $(
                #[tokio::test]
                async fn $name() {
                    hurried(async || provider_validation::$module::$function(&Store::$store()).await).await;
                }
            )+
        }
    };
}

/// Some functions give the machine a fraction of a second by the clock on the wall for what takes it milliseconds. One
/// that was busy with other tests just then says nothing about the provider, so they have several tries, each on a
/// container of its own. A rule that the provider breaks, it breaks in all of them.
async fn hurried(function: impl AsyncFn()) {
    for _ in 1..TRIES {
        if AssertUnwindSafe(function()).catch_unwind().await.is_ok() {
            return;
        }
    }
    function().await;
}

const TRIES: usize = 4;

suite!(atomicity {
    atomicity_failure_rollback = test_atomicity_failure_rollback,
    multi_operation_atomic_ack = test_multi_operation_atomic_ack,
    lock_released_only_on_successful_ack = test_lock_released_only_on_successful_ack,
    concurrent_ack_prevention = test_concurrent_ack_prevention,
});

suite!(error_handling {
    invalid_lock_token_on_ack = test_invalid_lock_token_on_ack,
    duplicate_event_id_rejection = test_duplicate_event_id_rejection,
    missing_instance_metadata = test_missing_instance_metadata,
    corrupted_serialization_data = test_corrupted_serialization_data,
    lock_expiration_during_ack = test_lock_expiration_during_ack,
});

suite!(instance_locking {
    exclusive_instance_lock = test_exclusive_instance_lock,
    lock_token_uniqueness = test_lock_token_uniqueness,
    invalid_lock_token_rejection = test_invalid_lock_token_rejection,
    concurrent_instance_fetching = test_concurrent_instance_fetching,
    completions_arriving_during_lock_blocked = test_completions_arriving_during_lock_blocked,
    cross_instance_lock_isolation = test_cross_instance_lock_isolation,
    message_tagging_during_lock = test_message_tagging_during_lock,
    ack_only_affects_locked_messages = test_ack_only_affects_locked_messages,
    multi_threaded_lock_contention = test_multi_threaded_lock_contention,
    multi_threaded_no_duplicate_processing = test_multi_threaded_no_duplicate_processing,
});

suite!(lock_expiration {
    lock_expires_after_timeout = test_lock_expires_after_timeout,
    abandon_releases_lock_immediately = test_abandon_releases_lock_immediately,
    lock_renewal_on_ack = test_lock_renewal_on_ack,
    concurrent_lock_attempts_respect_expiration = test_concurrent_lock_attempts_respect_expiration,
    worker_lock_renewal_success = test_worker_lock_renewal_success,
    worker_lock_renewal_invalid_token = test_worker_lock_renewal_invalid_token,
    worker_lock_renewal_after_expiration = test_worker_lock_renewal_after_expiration,
    worker_lock_renewal_extends_timeout = test_worker_lock_renewal_extends_timeout,
    worker_lock_renewal_after_ack = test_worker_lock_renewal_after_ack,
    abandon_work_item_releases_lock = test_abandon_work_item_releases_lock,
    worker_ack_fails_after_lock_expiry = test_worker_ack_fails_after_lock_expiry,
    orchestration_lock_renewal_after_expiration = test_orchestration_lock_renewal_after_expiration,
});

suite!(multi_execution {
    execution_isolation = test_execution_isolation,
    latest_execution_detection = test_latest_execution_detection,
    execution_id_sequencing = test_execution_id_sequencing,
    continue_as_new_creates_new_execution = test_continue_as_new_creates_new_execution,
    execution_history_persistence = test_execution_history_persistence,
});

suite!(queue_semantics {
    worker_queue_fifo_ordering = test_worker_queue_fifo_ordering,
    worker_peek_lock_semantics = test_worker_peek_lock_semantics,
    worker_ack_atomicity = test_worker_ack_atomicity,
    timer_delayed_visibility = test_timer_delayed_visibility,
    lost_lock_token_handling = test_lost_lock_token_handling,
    worker_item_immediate_visibility = test_worker_item_immediate_visibility,
    orphan_queue_messages_dropped = test_orphan_queue_messages_dropped,
});

suite!(instance_creation {
    instance_creation_via_metadata = test_instance_creation_via_metadata,
    no_instance_creation_on_enqueue = test_no_instance_creation_on_enqueue,
    null_version_handling = test_null_version_handling,
    sub_orchestration_instance_creation = test_sub_orchestration_instance_creation,
});

suite!(management {
    list_instances = test_list_instances,
    list_instances_by_status = test_list_instances_by_status,
    list_executions = test_list_executions,
    get_instance_info = test_get_instance_info,
    get_execution_info = test_get_execution_info,
    get_system_metrics = test_get_system_metrics,
    get_queue_depths = test_get_queue_depths,
    get_instance_stats_nonexistent = test_get_instance_stats_nonexistent,
    get_instance_stats_history = test_get_instance_stats_history,
    get_instance_stats_kv = test_get_instance_stats_kv,
    get_instance_stats_carry_forward = test_get_instance_stats_carry_forward,
    get_instance_stats_kv_delta_only = test_get_instance_stats_kv_delta_only,
    get_instance_stats_kv_merged = test_get_instance_stats_kv_merged,
});

suite!(poison_message {
    orchestration_ignore_attempt_preserves_hidden_start = orchestration_ignore_attempt_preserves_hidden_start,
    orchestration_delayed_abandon_preserves_unlocked_rows = orchestration_delayed_abandon_preserves_unlocked_rows,
    orchestration_attempt_count_starts_at_one = orchestration_attempt_count_starts_at_one,
    orchestration_attempt_count_increments_on_refetch = orchestration_attempt_count_increments_on_refetch,
    worker_attempt_count_starts_at_one = worker_attempt_count_starts_at_one,
    worker_attempt_count_increments_on_lock_expiry = worker_attempt_count_increments_on_lock_expiry,
    attempt_count_is_per_message = attempt_count_is_per_message,
    abandon_work_item_ignore_attempt_decrements = abandon_work_item_ignore_attempt_decrements,
    abandon_orchestration_item_ignore_attempt_decrements = abandon_orchestration_item_ignore_attempt_decrements,
    ignore_attempt_never_goes_negative = ignore_attempt_never_goes_negative,
    max_attempt_count_across_message_batch = max_attempt_count_across_message_batch,
});

suite!(cancellation {
    fetch_returns_running_state_for_active_orchestration = test_fetch_returns_running_state_for_active_orchestration,
    fetch_returns_terminal_state_when_orchestration_completed = test_fetch_returns_terminal_state_when_orchestration_completed,
    fetch_returns_terminal_state_when_orchestration_failed = test_fetch_returns_terminal_state_when_orchestration_failed,
    fetch_returns_terminal_state_when_orchestration_continued_as_new = test_fetch_returns_terminal_state_when_orchestration_continued_as_new,
    fetch_returns_missing_state_when_instance_deleted = test_fetch_returns_missing_state_when_instance_deleted,
    renew_returns_running_when_orchestration_active = test_renew_returns_running_when_orchestration_active,
    renew_returns_terminal_when_orchestration_completed = test_renew_returns_terminal_when_orchestration_completed,
    renew_returns_missing_when_instance_deleted = test_renew_returns_missing_when_instance_deleted,
    ack_work_item_none_deletes_without_enqueue = test_ack_work_item_none_deletes_without_enqueue,
    cancelled_activities_deleted_from_worker_queue = test_cancelled_activities_deleted_from_worker_queue,
    ack_work_item_fails_when_entry_deleted = test_ack_work_item_fails_when_entry_deleted,
    renew_fails_when_entry_deleted = test_renew_fails_when_entry_deleted,
    cancelling_nonexistent_activities_is_idempotent = test_cancelling_nonexistent_activities_is_idempotent,
    batch_cancellation_deletes_multiple_activities = test_batch_cancellation_deletes_multiple_activities,
    same_activity_in_worker_items_and_cancelled_is_noop = test_same_activity_in_worker_items_and_cancelled_is_noop,
    orphan_activity_after_instance_force_deletion = test_orphan_activity_after_instance_force_deletion,
});

suite!(deletion {
    delete_terminal_instances = test_delete_terminal_instances,
    delete_running_rejected_force_succeeds = test_delete_running_rejected_force_succeeds,
    delete_nonexistent_instance = test_delete_nonexistent_instance,
    delete_cleans_queues_and_locks = test_delete_cleans_queues_and_locks,
    cascade_delete_hierarchy = test_cascade_delete_hierarchy,
    force_delete_prevents_ack_recreation = test_force_delete_prevents_ack_recreation,
    list_children = test_list_children,
    delete_get_parent_id = test_delete_get_parent_id,
    delete_get_instance_tree = test_delete_get_instance_tree,
    delete_instances_atomic = test_delete_instances_atomic,
    delete_instances_atomic_force = test_delete_instances_atomic_force,
    delete_instances_atomic_orphan_detection = test_delete_instances_atomic_orphan_detection,
    stale_activity_after_delete_recreate = test_stale_activity_after_delete_recreate,
});

suite!(prune {
    prune_options_combinations = test_prune_options_combinations,
    prune_safety = test_prune_safety,
    prune_bulk = test_prune_bulk,
    prune_bulk_includes_running_instances = test_prune_bulk_includes_running_instances,
});

suite!(bulk_deletion {
    delete_instance_bulk_filter_combinations = test_delete_instance_bulk_filter_combinations,
    delete_instance_bulk_safety_and_limits = test_delete_instance_bulk_safety_and_limits,
    delete_instance_bulk_completed_before_filter = test_delete_instance_bulk_completed_before_filter,
    delete_instance_bulk_cascades_to_children = test_delete_instance_bulk_cascades_to_children,
});

suite!(capability_filtering {
    fetch_with_filter_none_returns_any_item = test_fetch_with_filter_none_returns_any_item,
    fetch_with_compatible_filter_returns_item = test_fetch_with_compatible_filter_returns_item,
    fetch_with_incompatible_filter_skips_item = test_fetch_with_incompatible_filter_skips_item,
    fetch_filter_skips_incompatible_selects_compatible = test_fetch_filter_skips_incompatible_selects_compatible,
    fetch_filter_does_not_lock_skipped_instances = test_fetch_filter_does_not_lock_skipped_instances,
    fetch_filter_null_pinned_version_always_compatible = test_fetch_filter_null_pinned_version_always_compatible,
    fetch_filter_boundary_versions = test_fetch_filter_boundary_versions,
    pinned_version_stored_via_ack_metadata = test_pinned_version_stored_via_ack_metadata,
    pinned_version_immutable_across_ack_cycles = test_pinned_version_immutable_across_ack_cycles,
    continue_as_new_execution_gets_own_pinned_version = test_continue_as_new_execution_gets_own_pinned_version,
    filter_with_empty_supported_versions_returns_nothing = test_filter_with_empty_supported_versions_returns_nothing,
    concurrent_filtered_fetch_no_double_lock = test_concurrent_filtered_fetch_no_double_lock,
    ack_stores_pinned_version_via_metadata_update = test_ack_stores_pinned_version_via_metadata_update,
    provider_updates_pinned_version_when_told = test_provider_updates_pinned_version_when_told,
    fetch_single_range_only_uses_first_range = test_fetch_single_range_only_uses_first_range,
});

suite!(sessions {
    non_session_items_fetchable_by_any_worker = test_non_session_items_fetchable_by_any_worker,
    session_item_claimable_when_no_session = test_session_item_claimable_when_no_session,
    session_affinity_same_worker = test_session_affinity_same_worker,
    session_affinity_blocks_other_worker = test_session_affinity_blocks_other_worker,
    different_sessions_different_workers = test_different_sessions_different_workers,
    mixed_session_and_non_session_items = test_mixed_session_and_non_session_items,
    session_claimable_after_lock_expiry = test_session_claimable_after_lock_expiry,
    none_session_skips_session_items = test_none_session_skips_session_items,
    some_session_returns_all_items = test_some_session_returns_all_items,
    renew_session_lock_active = test_renew_session_lock_active,
    renew_session_lock_skips_idle = test_renew_session_lock_skips_idle,
    renew_session_lock_no_sessions = test_renew_session_lock_no_sessions,
    cleanup_removes_expired_no_items = test_cleanup_removes_expired_no_items,
    cleanup_keeps_sessions_with_pending_items = test_cleanup_keeps_sessions_with_pending_items,
    cleanup_keeps_active_sessions = test_cleanup_keeps_active_sessions,
    ack_updates_session_last_activity = test_ack_updates_session_last_activity,
    renew_work_item_updates_session_last_activity = test_renew_work_item_updates_session_last_activity,
    session_items_processed_in_order = test_session_items_processed_in_order,
    non_session_items_returned_with_session_config = test_non_session_items_returned_with_session_config,
    shared_worker_id_any_caller_can_fetch_owned_session = test_shared_worker_id_any_caller_can_fetch_owned_session,
    concurrent_session_claim_only_one_wins = test_concurrent_session_claim_only_one_wins,
    session_takeover_after_lock_expiry = test_session_takeover_after_lock_expiry,
    cleanup_then_new_item_recreates_session = test_cleanup_then_new_item_recreates_session,
    abandoned_session_item_retryable = test_abandoned_session_item_retryable,
    abandoned_session_item_ignore_attempt = test_abandoned_session_item_ignore_attempt,
    renew_session_lock_after_expiry_returns_zero = test_renew_session_lock_after_expiry_returns_zero,
    original_worker_reclaims_expired_session = test_original_worker_reclaims_expired_session,
    session_lock_expires_new_owner_gets_redelivery = test_session_lock_expires_new_owner_gets_redelivery,
    session_lock_expires_same_worker_reacquires = test_session_lock_expires_same_worker_reacquires,
    session_lock_expires_activity_lock_valid_ack_succeeds = test_session_lock_expires_activity_lock_valid_ack_succeeds,
});

suite!(custom_status {
    custom_status_set = test_custom_status_set,
    custom_status_clear = test_custom_status_clear,
    custom_status_none_preserves = test_custom_status_none_preserves,
    custom_status_version_increments = test_custom_status_version_increments,
    custom_status_polling_no_change = test_custom_status_polling_no_change,
    custom_status_nonexistent_instance = test_custom_status_nonexistent_instance,
    custom_status_default_on_new_instance = test_custom_status_default_on_new_instance,
});

suite!(tag_filtering {
    default_only_fetches_untagged = test_default_only_fetches_untagged,
    tags_fetches_only_matching = test_tags_fetches_only_matching,
    default_and_fetches_untagged_and_matching = test_default_and_fetches_untagged_and_matching,
    none_filter_returns_nothing = test_none_filter_returns_nothing,
    multi_tag_filter = test_multi_tag_filter,
    tag_round_trip_preservation = test_tag_round_trip_preservation,
    any_filter_fetches_everything = test_any_filter_fetches_everything,
    tag_survives_abandon_and_refetch = test_tag_survives_abandon_and_refetch,
    multi_runtime_tag_isolation = test_multi_runtime_tag_isolation,
    tag_preserved_through_ack_orchestration_item = test_tag_preserved_through_ack_orchestration_item,
});

suite!(kv_store {
    kv_set_and_get = test_kv_set_and_get,
    kv_overwrite = test_kv_overwrite,
    kv_clear_single = test_kv_clear_single,
    kv_clear_all = test_kv_clear_all,
    kv_get_nonexistent = test_kv_get_nonexistent,
    kv_snapshot_in_fetch = test_kv_snapshot_in_fetch,
    kv_snapshot_after_clear_single = test_kv_snapshot_after_clear_single,
    kv_snapshot_after_clear_all = test_kv_snapshot_after_clear_all,
    kv_execution_id_tracking = test_kv_execution_id_tracking,
    kv_cross_execution_overwrite = test_kv_cross_execution_overwrite,
    kv_cross_execution_remove_readd = test_kv_cross_execution_remove_readd,
    kv_prune_preserves_overwritten = test_kv_prune_preserves_overwritten,
    kv_prune_preserves_all_keys = test_kv_prune_preserves_all_keys,
    kv_instance_isolation = test_kv_instance_isolation,
    kv_delete_instance_cascades = test_kv_delete_instance_cascades,
    kv_clear_nonexistent_key = test_kv_clear_nonexistent_key,
    kv_get_unknown_instance = test_kv_get_unknown_instance,
    kv_set_after_clear = test_kv_set_after_clear,
    kv_empty_value = test_kv_empty_value,
    kv_large_value = test_kv_large_value,
    kv_special_chars_in_key = test_kv_special_chars_in_key,
    kv_snapshot_empty = test_kv_snapshot_empty,
    kv_snapshot_cross_execution = test_kv_snapshot_cross_execution,
    kv_prune_current_execution_protected = test_kv_prune_current_execution_protected,
    kv_delete_instance_with_children = test_kv_delete_instance_with_children,
    kv_clear_isolation = test_kv_clear_isolation,
    kv_delta_snapshot_excludes_current_execution = test_kv_delta_snapshot_excludes_current_execution,
    kv_delta_snapshot_includes_completed_execution = test_kv_delta_snapshot_includes_completed_execution,
    kv_delta_client_reads_merged = test_kv_delta_client_reads_merged,
    kv_delta_tombstone_overrides_store = test_kv_delta_tombstone_overrides_store,
    kv_delta_clear_all_tombstones_store = test_kv_delta_clear_all_tombstones_store,
    kv_delta_merged_on_completion = test_kv_delta_merged_on_completion,
    kv_delta_merged_on_can = test_kv_delta_merged_on_can,
    kv_delta_delete_instance_cascades = test_kv_delta_delete_instance_cascades,
    kv_delta_prune_untouched_key_survives = test_kv_delta_prune_untouched_key_survives,
});

suite!(race_replay {
    duplicate_start_preserves_pinned_handler = test_duplicate_start_preserves_pinned_handler,
    continue_as_new_duplicate_start = test_continue_as_new_duplicate_start,
    queue_race_cancellation_replay = test_queue_race_cancellation_replay,
    continue_as_new_queue_race_replay = test_continue_as_new_queue_race_replay,
    queue_replay_version_stamp_roundtrip = test_queue_replay_version_stamp_roundtrip,
    positional_wait_race_replay = test_positional_wait_race_replay,
    legacy_queue_race_decision_preserved = test_legacy_queue_race_decision_preserved,
});

// These change stored history behind the provider's back, as another process would find it: nothing may be remembered.
suite!(corrupted_history_by_filter, capability_filtering, without_memory {
    ack_appends_event_to_corrupted_history = test_ack_appends_event_to_corrupted_history,
    fetch_corrupted_history_filtered_vs_unfiltered = test_fetch_corrupted_history_filtered_vs_unfiltered,
    fetch_filter_applied_before_history_deserialization = test_fetch_filter_applied_before_history_deserialization,
});

suite!(corrupted_history, error_handling, without_memory {
    read_corrupted_history_returns_error = test_read_corrupted_history_returns_error,
    read_with_execution_corrupted_history_returns_error = test_read_with_execution_corrupted_history_returns_error,
});

suite!(hurried_instance_locking, instance_locking, default, hurried {
    multi_threaded_lock_expiration_recovery = test_multi_threaded_lock_expiration_recovery,
});

suite!(hurried_lock_expiration, lock_expiration, default, hurried {
    abandon_work_item_with_delay = test_abandon_work_item_with_delay,
});

suite!(hurried_queue_semantics, queue_semantics, default, hurried {
    worker_delayed_visibility_skips_future_items = test_worker_delayed_visibility_skips_future_items,
});

suite!(hurried_sessions, sessions, default, hurried {
    activity_lock_expires_session_lock_valid_same_worker_refetches = test_activity_lock_expires_session_lock_valid_same_worker_refetches,
    both_locks_expire_different_worker_claims = test_both_locks_expire_different_worker_claims,
    session_lock_renewal_extends_past_original_timeout = test_session_lock_renewal_extends_past_original_timeout,
});

suite!(hurried_race_replay, race_replay, default, hurried {
    continue_as_new_unregistered_backoff = test_continue_as_new_unregistered_backoff,
    continue_as_new_poisoned_successor_is_own_execution = test_continue_as_new_poisoned_successor_is_own_execution,
});

suite!(hurried_capability_filtering, capability_filtering, without_memory, hurried {
    fetch_deserialization_error_increments_attempt_count = test_fetch_deserialization_error_increments_attempt_count,
    fetch_deserialization_error_eventually_reaches_poison = test_fetch_deserialization_error_eventually_reaches_poison,
});

mod continue_as_new_stamps {
    use super::*;

    #[tokio::test]
    async fn transition_delivery_before_the_race_rules() {
        provider_validation::race_replay::test_continue_as_new_transition_delivery(
            &Store::default(),
            "0.1.30",
        )
        .await;
    }

    #[tokio::test]
    async fn transition_delivery_with_the_race_rules() {
        provider_validation::race_replay::test_continue_as_new_transition_delivery(
            &Store::default(),
            "0.1.31",
        )
        .await;
    }
}

/// This provider waits, so the long-poll pair applies and the short-poll pair does not.
mod long_polling {
    use super::*;

    #[tokio::test]
    async fn long_poll_waits_for_timeout() {
        let provider = Store::default().provider().await;
        provider_validation::long_polling::test_long_poll_waits_for_timeout(&provider).await;
    }

    #[tokio::test]
    async fn long_poll_work_item_waits_for_timeout() {
        let provider = Store::default().provider().await;
        provider_validation::long_polling::test_long_poll_work_item_waits_for_timeout(&provider).await;
    }

    #[tokio::test]
    async fn fetch_respects_timeout_upper_bound() {
        hurried(async || {
            let provider = Store::default().provider().await;
            provider_validation::long_polling::test_fetch_respects_timeout_upper_bound(&provider).await;
        })
        .await;
    }

    #[tokio::test]
    async fn a_message_ends_the_wait() {
        use duroxide::providers::Provider as _;
        let provider = Store::default().provider().await;
        let waiting = {
            let provider = provider.clone();
            tokio::spawn(async move {
                provider.fetch_orchestration_item(Duration::from_secs(5), Duration::from_secs(30), None).await
            })
        };
        tokio::task::yield_now().await;
        provider.enqueue_for_orchestrator(crate::world::start("a", "Hello", ""), None).await.unwrap();
        let begun = std::time::Instant::now();
        assert!(waiting.await.unwrap().unwrap().is_some());
        assert!(begun.elapsed() < Duration::from_secs(15));
    }
}
