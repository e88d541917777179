//! The `process_*` metrics, with the names of Prometheus' client libraries, read at each scrape.
//!
//! The collector of the `prometheus` crate counts only whole seconds of CPU time, and lacks the
//! limit of the virtual memory and the network.

use std::collections::HashMap;
use std::fs;

use procfs::process::{LimitValue, Process};
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Metric, MetricFamily, MetricType};

const CPU: &str = "process_cpu_seconds_total";
const RECEIVED: &str = "process_network_receive_bytes_total";
const SENT: &str = "process_network_transmit_bytes_total";

/// The names and the help texts of the metrics.
const FAMILIES: [(&str, &str); 10] = [
    (CPU, "CPU time of the process in user and kernel mode, in seconds."),
    ("process_max_fds", "Limit of open file descriptors."),
    ("process_open_fds", "Number of open file descriptors."),
    ("process_resident_memory_bytes", "Resident memory in bytes."),
    (
        "process_start_time_seconds",
        "Start of the process, in seconds since 1970-01-01 UTC.",
    ),
    ("process_threads", "Number of threads."),
    ("process_virtual_memory_bytes", "Virtual memory in bytes."),
    (
        "process_virtual_memory_max_bytes",
        "Limit of the virtual memory in bytes.",
    ),
    (
        RECEIVED,
        "Bytes received by the network namespace of the process, which is that of its pod.",
    ),
    (
        SENT,
        "Bytes sent by the network namespace of the process, which is that of its pod.",
    ),
];

/// Reads the metrics of this process from procfs. What cannot be read has no series.
pub(crate) struct ProcessCollector {
    descriptions: Vec<Desc>,
}

impl ProcessCollector {
    pub(crate) fn new() -> Result<Self, prometheus::Error> {
        let describe =
            |(name, help): (&str, &str)| Desc::new(name.to_owned(), help.to_owned(), Vec::new(), HashMap::new());
        Ok(Self {
            descriptions: FAMILIES.into_iter().map(describe).collect::<Result<_, _>>()?,
        })
    }
}

impl Collector for ProcessCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let values = values();
        let descriptions = self.descriptions.iter();
        let families = descriptions.map(|description| {
            let value = values.iter().find(|(name, _)| *name == description.fq_name);
            family(description, value.map(|(_, value)| *value))
        });
        families.collect()
    }
}

fn family(description: &Desc, value: Option<f64>) -> MetricFamily {
    let is_counter = description.fq_name.ends_with("_total");
    let mut family = MetricFamily::default();
    family.set_name(description.fq_name.clone());
    family.set_help(description.help.clone());
    family.set_field_type(if is_counter {
        MetricType::COUNTER
    } else {
        MetricType::GAUGE
    });
    let metric = |value| {
        let mut metric = Metric::default();
        if is_counter {
            let mut counter = prometheus::proto::Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = prometheus::proto::Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        metric
    };
    family.set_metric(value.map(metric).into_iter().collect());
    family
}

/// Returns what can be read, by the name of the metric.
#[expect(clippy::cast_precision_loss, reason = "metrics are floats, and 53 bits suffice")]
fn values() -> Vec<(&'static str, f64)> {
    let mut values = Vec::new();
    let Ok(process) = Process::myself() else {
        return values;
    };
    if let Ok(stat) = process.stat() {
        let ticks = procfs::ticks_per_second() as f64;
        values.extend([
            (CPU, (stat.utime + stat.stime) as f64 / ticks),
            ("process_resident_memory_bytes", (stat.rss * procfs::page_size()) as f64),
            ("process_threads", stat.num_threads as f64),
            ("process_virtual_memory_bytes", stat.vsize as f64),
        ]);
        let boot = procfs::boot_time_secs().ok();
        values.extend(boot.map(|boot| {
            (
                "process_start_time_seconds",
                boot as f64 + stat.starttime as f64 / ticks,
            )
        }));
    }
    if let Ok(limits) = process.limits() {
        let limit = |limit| match limit {
            LimitValue::Unlimited => u64::MAX as f64,
            LimitValue::Value(value) => value as f64,
        };
        values.extend([
            ("process_max_fds", limit(limits.max_open_files.soft_limit)),
            (
                "process_virtual_memory_max_bytes",
                limit(limits.max_address_space.soft_limit),
            ),
        ]);
    }
    let open = process.fd_count().ok();
    values.extend(open.map(|open| ("process_open_fds", open as f64)));
    if let Ok(text) = fs::read_to_string("/proc/self/net/netstat") {
        let octets = |column| octets(&text, column).map(|octets| octets as f64);
        values.extend(octets("InOctets").map(|octets| (RECEIVED, octets)));
        values.extend(octets("OutOctets").map(|octets| (SENT, octets)));
    }
    values
}

/// Returns a number of the protocol `IpExt`: one line has the names of the columns, the next one
/// the numbers.
fn octets(text: &str, column: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("IpExt: "));
    let position = lines.next()?.split(' ').position(|name| name == column)?;
    lines.next()?.split(' ').nth(position)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_can_be_read() {
        let collector = ProcessCollector::new().unwrap();
        let families = collector.collect();
        assert_eq!(families.len(), FAMILIES.len());
        for family in families {
            assert_eq!(family.get_metric().len(), 1, "{}", family.name());
        }
    }

    #[test]
    fn octets_are_found_by_the_name_of_their_column() {
        let text = "TcpExt: A B\nTcpExt: 1 2\nIpExt: InNoRoutes InOctets OutOctets\nIpExt: 3 4 5\n";
        assert_eq!(octets(text, "InOctets"), Some(4));
        assert_eq!(octets(text, "OutOctets"), Some(5));
        assert_eq!(octets(text, "A"), None);
        assert_eq!(octets("", "InOctets"), None);
    }
}
