// The metrics of one scrape, in the text format of Prometheus.
//
// Names have the prefix cadre_, base units (seconds, bytes) and, for counters, the suffix _total.
// Labels never name workers, so that the number of series does not grow with their number.
// docs/metrics.md lists all names; a test compares.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/counters.h"
#include "base/http/histogram.h"

namespace cadre {

class Metrics {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  Metrics();
  ~Metrics();

  // Each adds a value. All values of a name have the same type and help text.
  void Gauge(const std::string& name, const std::string& help, double value,
             const Labels& labels = {});
  void Counter(const std::string& name, const std::string& help, double value,
               const Labels& labels = {});
  void AddHistogram(const std::string& name, const std::string& help,
                    const Histogram::Snapshot& values, const Labels& labels = {});

  // Adds the counters of a member, "steps" as cadre_steps_total.
  void AddCounters(const std::map<std::string, uint64_t>& counters);
  // Adds what the kernel reports about this process (process_*) and its build.
  void AddProcess(const std::string& version);
  // Adds the free and total bytes of the file system with this path.
  void AddDisk(const std::string& path);

  std::string Text() const;

 private:
  struct Families;
  const std::unique_ptr<Families> families_;
};

}  // namespace cadre
