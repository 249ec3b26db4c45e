#include "base/http/metrics.h"

#include <dirent.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace cadre {

struct Metrics::Families {
  // In the order of their first value.
  std::vector<prometheus::MetricFamily> list;
  std::map<std::string, size_t> by_name;

  prometheus::ClientMetric& Add(const std::string& name, const std::string& help,
                                prometheus::MetricType type, const Labels& labels) {
    const auto [found, added] = by_name.try_emplace(name, list.size());
    if (added) {
      prometheus::MetricFamily& family = list.emplace_back();
      family.name = name;
      family.help = help;
      family.type = type;
    }
    prometheus::ClientMetric& metric = list[found->second].metric.emplace_back();
    for (const auto& [label, value] : labels) metric.label.push_back({label, value});
    return metric;
  }
};

Metrics::Metrics() : families_(std::make_unique<Families>()) {}
Metrics::~Metrics() = default;

void Metrics::Gauge(const std::string& name, const std::string& help, double value,
                    const Labels& labels) {
  families_->Add(name, help, prometheus::MetricType::Gauge, labels).gauge.value = value;
}

void Metrics::Counter(const std::string& name, const std::string& help, double value,
                      const Labels& labels) {
  families_->Add(name, help, prometheus::MetricType::Counter, labels).counter.value = value;
}

void Metrics::AddHistogram(const std::string& name, const std::string& help,
                           const Histogram::Snapshot& values, const Labels& labels) {
  prometheus::ClientMetric::Histogram& histogram =
      families_->Add(name, help, prometheus::MetricType::Histogram, labels).histogram;
  for (size_t i = 0; i < values.counts.size(); ++i) {
    histogram.sample_count += values.counts[i];
    const double bound = i < Histogram::kBounds.size() ? Histogram::kBounds[i]
                                                       : std::numeric_limits<double>::infinity();
    histogram.bucket.push_back({histogram.sample_count, bound});
  }
  histogram.sample_sum = values.sum;
}

void Metrics::AddCounters(const std::map<std::string, uint64_t>& counters) {
  for (const auto& [name, value] : counters) {
    absl::string_view reason = name;
    if (absl::ConsumePrefix(&reason, "refused_")) {
      Counter("cadre_refusals_total", "Messages and requests that were refused, by reason.",
              static_cast<double>(value), {{"reason", std::string(reason)}});
      continue;
    }
    const std::string text = absl::StrReplaceAll(name, {{"_", " "}, {".", " "}, {"-", " "}});
    Counter(absl::StrCat("cadre_", absl::StrReplaceAll(name, {{".", "_"}, {"-", "_"}}), "_total"),
            absl::StrCat("Number of: ", text, "."), static_cast<double>(value));
  }
}

void Metrics::AddProcess(const std::string& version) {
  Gauge("cadre_build_info", "1, with the version of the program.", 1, {{"version", version}});
  std::ifstream file("/proc/self/stat");
  std::stringstream text;
  text << file.rdbuf();
  // The name in parentheses may contain anything.
  const std::string stat = text.str();
  const size_t end = stat.rfind(')');
  if (end == std::string::npos) return;
  const std::vector<std::string> fields = absl::StrSplit(stat.substr(end + 2), ' ');
  // Field n of proc(5) has the index n - 3.
  const auto field = [&](size_t n) {
    double value = 0;
    return n - 3 < fields.size() && absl::SimpleAtod(fields[n - 3], &value) ? value : 0;
  };
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  Counter("process_cpu_seconds_total", "User and system time of the process.",
          (field(14) + field(15)) / ticks);
  Gauge("process_threads", "Threads of the process.", field(20));
  Gauge("process_virtual_memory_bytes", "Virtual memory of the process.", field(23));
  Gauge("process_resident_memory_bytes", "Resident memory of the process.",
        field(24) * static_cast<double>(sysconf(_SC_PAGESIZE)));
  std::ifstream boot("/proc/stat");
  for (std::string line; std::getline(boot, line);) {
    absl::string_view value = line;
    double seconds = 0;
    if (!absl::ConsumePrefix(&value, "btime ") || !absl::SimpleAtod(value, &seconds)) continue;
    Gauge("process_start_time_seconds", "Start of the process, in seconds since the Unix epoch.",
          seconds + field(22) / ticks);
  }
  if (DIR* const folder = opendir("/proc/self/fd")) {
    int open = -3;  // without ".", ".." and the folder itself
    while (readdir(folder) != nullptr) ++open;
    closedir(folder);
    Gauge("process_open_fds", "Open file descriptors of the process.", open);
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    Gauge("process_max_fds", "Limit of open file descriptors.",
          static_cast<double>(limit.rlim_cur));
  }
}

void Metrics::AddDisk(const std::string& path) {
  struct statvfs disk {};
  if (statvfs(path.c_str(), &disk) != 0) return;
  const auto block = static_cast<double>(disk.f_frsize);
  Gauge("cadre_disk_free_bytes", "Free bytes of the disk with the data of the process.",
        static_cast<double>(disk.f_bavail) * block);
  Gauge("cadre_disk_size_bytes", "Size of the disk with the data of the process.",
        static_cast<double>(disk.f_blocks) * block);
}

std::string Metrics::Text() const {
  return prometheus::TextSerializer().Serialize(families_->list);
}

}  // namespace cadre
