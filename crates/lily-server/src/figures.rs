//! The engine's own figures for `/metrics`, read when they are asked for.

use std::fmt;

use lily_engine::{Engine, Stats};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

pub(crate) struct EngineFigures(pub Engine);

impl fmt::Debug for EngineFigures {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("EngineFigures")
    }
}

impl Collector for EngineFigures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let stats = self.0.stats();
        for (name, help, value) in gauges(&stats) {
            let gauge = ConstGauge::new(value as u64);
            gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        for (name, help, value) in counters(&stats) {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)?;
        }
        for (name, help, value) in seconds(&stats) {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)?;
        }
        let help = "Started prompts by what the state cache had for them";
        let mut lookups = encoder.encode_descriptor("cache_lookups", help, None, MetricType::Counter)?;
        for (result, value) in lookup_results(&stats) {
            ConstCounter::new(value).encode(lookups.encode_family(&[("result", result)])?)?;
        }
        Ok(())
    }
}

fn gauges(stats: &Stats) -> [(&'static str, &'static str, usize); 13] {
    [
        ("requests_waiting", "Requests in the queue", stats.waiting),
        ("requests_prefilling", "Requests whose prompt is being processed", stats.prefilling),
        ("requests_decoding", "Requests that generate", stats.decoding),
        ("slots_used", "State slots in use", stats.slots_used),
        ("slots", "State slots", stats.slots),
        ("kv_pages_used", "KV pages that running requests hold", stats.pages_used),
        ("kv_pages_cached", "KV pages that only the state cache holds", stats.pages_cached),
        ("kv_pages", "KV pages", stats.pages),
        ("cache_entries", "Saved states", stats.cache.entries),
        ("cache_bytes", "Bytes that the state cache holds", stats.cache.bytes),
        ("cache_bytes_max", "Bytes that the state cache may hold", stats.cache.bytes_max),
        ("cache_disk_entries", "Saved states on disk", stats.cache.disk_entries),
        ("cache_disk_bytes", "Bytes that the state cache holds on disk", stats.cache.disk_bytes as usize),
    ]
}

fn counters(stats: &Stats) -> [(&'static str, &'static str, u64); 12] {
    [
        ("requests_submitted", "Requests that entered the queue", stats.submitted),
        ("requests_cancelled", "Requests whose client left or had enough", stats.cancelled),
        ("requests_failed", "Requests that the engine failed", stats.failed),
        ("requests_preempted", "Times that a request lost its slot to an older one", stats.preempted),
        ("prompt_tokens", "Tokens of started prompts", stats.prompt_tokens),
        ("cached_tokens", "Prompt tokens whose state came from the cache", stats.cached_tokens),
        ("prefill_tokens", "Prompt tokens that were computed", stats.prefill_tokens),
        ("generated_tokens", "Tokens generated", stats.generated_tokens),
        ("passes", "Forward passes", stats.passes),
        ("cache_saved", "States saved", stats.cache.saved),
        ("cache_evicted_for_bytes", "Saved states dropped for the byte budget", stats.cache.evicted_for_bytes),
        ("cache_evicted_for_pages", "Saved states dropped for the pages they held", stats.cache.evicted_for_pages),
    ]
}

fn seconds(stats: &Stats) -> [(&'static str, &'static str, f64); 3] {
    [
        ("prefill_seconds", "Time from slot to first token, summed over requests", stats.prefill.as_secs_f64()),
        ("decode_seconds", "Time from first to last token, summed over requests", stats.decode.as_secs_f64()),
        ("busy_seconds", "Time inside forward passes", stats.busy.as_secs_f64()),
    ]
}

fn lookup_results(stats: &Stats) -> [(&'static str, u64); 6] {
    let cache = &stats.cache;
    [
        ("hit", cache.hits),
        ("hit_disk", cache.hits_disk),
        ("miss_off", cache.misses_off),
        ("miss_empty", cache.misses_empty),
        ("miss_other_prompt", cache.misses_other_prompt),
        ("miss_no_copy", cache.misses_no_copy),
    ]
}
