// Measurements of this cluster's groups: layer times by device kind and model, and links by hosts.
//
// Layer times are durable records that outlive runs and restarts of the coordinator: Record returns
// a record, which its caller stores. Links depend on the current load, so they are kept in memory
// only, in bounded number. Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "model/graph.h"
#include "model/validate.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

// Limit of the layer times of one message, and of one model on one device kind: each layer of the
// largest model for two sizes of micro-batches.
inline constexpr int kMaxLayerTimes = 2 * kMaxLayers;
// Limit of stored links: every group of a run, and as many earlier ones.
inline constexpr size_t kMaxLinks = 2 * kMaxGroups;

// Errors: InvalidArgument for times that are negative, not finite or longer than `limit`, within
// which all of it was measured, a step time of 0, impossible parts of layers, and more times or
// longer names than a model may have.
absl::Status CheckMeasured(const v1::Measured& measured, absl::Duration limit);
// Removes times of layers that are not in `layers`.
void RemoveUnknownLayers(const std::vector<std::string>& layers, v1::ModelTimes& times);

class Measurements {
 public:
  // Restores layer times from a record of the store (coordinator/store/keys.h).
  void Load(const std::string& key, const v1::LayerTimesRecord& record);

  struct Update {
    std::string key;
    // Valid until the next Record.
    const v1::LayerTimesRecord* record = nullptr;
    // Key of the record that was evicted; empty if none.
    std::string evicted;
  };
  // Adds times that a rank on `device` has measured for `model` (its key); they replace earlier
  // times of the same parts of layers.
  Update Record(absl::string_view device, absl::string_view model, const v1::Measured& measured);
  // Returns null if never measured.
  const v1::LayerTimesRecord* TimesOf(absl::string_view device, absl::string_view model) const;

  // `hosts`: the host of each rank.
  void RecordLink(const std::vector<std::string>& hosts, const v1::LinkProfile& link);
  // The newest link that was measured with exactly these numbers of ranks per host or, if there is
  // none, with any numbers of ranks on the same hosts.
  std::optional<v1::LinkProfile> LinkOf(const std::vector<std::string>& hosts) const;

 private:
  struct Link {
    uint64_t order = 0;
    v1::LinkProfile link;
  };
  struct Times {
    uint64_t order = 0;
    v1::LayerTimesRecord record;
  };
  std::string EvictIfFull(const std::string& key);
  void EvictOldestLink();

  std::map<std::string, Times> times_;
  // The links, by set of hosts, then by list of hosts with one entry per rank.
  std::map<std::string, std::map<std::string, Link>> links_;
  // Both keys of each link, oldest first.
  std::map<uint64_t, std::pair<std::string, std::string>> by_age_;
  uint64_t sequence_ = 0;
};

}  // namespace cadre
