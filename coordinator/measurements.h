// What the groups of this cluster have measured so far: times of layers, by kind of device and
// model, and links, by the hosts that they connect.
//
// Layer times are durable records that outlive runs and the coordinator: whoever has one changed
// stores what Learn returns. Links change with what else goes on, so they are only remembered, a
// bounded number of them. Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/records.pb.h"
#include "spec/inference.h"
#include "spec/validate.h"

namespace cadre {

// Times that one message may tell of, and that are kept of one model on one kind of device: each
// layer of the largest model for two sizes of micro-batches.
inline constexpr int kMostLayerTimes = 2 * kMostLayers;
// Links that are remembered: of every group of a run, and of as many before.
inline constexpr size_t kMostLinks = 2 * kMostGroups;

// Errors: InvalidArgument for times that are negative or no numbers, a step of no length, parts
// that no layer can have, and more times or longer names than any model has.
absl::Status CheckMeasured(const v1::Measured& measured);
// Takes out what is told of other layers than these.
void KeepLayers(const std::vector<std::string>& layers, v1::ModelTimes& times);

class Measurements {
 public:
  // Layer times by record key (coordinator/keys.h), as a store holds them.
  void Load(const std::string& key, const v1::LayerTimesRecord& record);

  struct Learnt {
    std::string key;
    // Valid until the next Learn.
    const v1::LayerTimesRecord* record = nullptr;
    // Key of the record that was given up for it; empty: none was.
    std::string forgotten;
  };
  // Takes what a rank on `device` has measured of `model` (its key) into the record, in place of
  // what was measured of the same parts before.
  Learnt Learn(absl::string_view device, absl::string_view model, const v1::Measured& measured);
  // Null: never measured.
  const v1::LayerTimesRecord* TimesOf(absl::string_view device, absl::string_view model) const;

  // `hosts`: that of each rank.
  void LearnLink(const std::vector<std::string>& hosts, const v1::LinkProfile& link);
  // The last one of just so many ranks on each of these hosts or, if there is none, of any number
  // of them.
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
  std::string MakeRoom(const std::string& key);
  void ForgetOldestLink();

  std::map<std::string, Times> times_;
  // By hosts, each once, then by hosts as often as they have ranks.
  std::map<std::string, std::map<std::string, Link>> links_;
  // Both keys of each of them, oldest first.
  std::map<uint64_t, std::pair<std::string, std::string>> by_age_;
  uint64_t learnt_ = 0;
};

}  // namespace cadre
