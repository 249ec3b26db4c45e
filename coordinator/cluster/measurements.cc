// Layer times are keyed by device and model, not by run: the times of a finished run are the
// prediction for the next one. For each part of a layer the newest measurement replaces older ones.
// Links are keyed by the hosts of the ranks, sorted, because ranks of one group are
// interchangeable. Both maps are bounded, because their keys come from messages; the oldest entry
// is evicted.
#include "coordinator/cluster/measurements.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "coordinator/store/keys.h"
#include "plan/layer_part.h"

namespace cadre {
namespace {

// Maximum number of pairs of device kind and model.
constexpr size_t kMaxModels = 1024;
// Maximum number of samples, and of parts of one index.
constexpr uint32_t kMaxParts = 1U << 30;

absl::Status CheckTime(double seconds, absl::Duration limit) {
  if (!std::isfinite(seconds) || seconds < 0) {
    return absl::InvalidArgumentError(absl::StrCat(seconds, " is not a duration"));
  }
  if (absl::Seconds(seconds) <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(seconds,
                                                 " seconds are claimed, but it began only ",
                                                 absl::ToDoubleSeconds(limit), " seconds ago"));
}

// New times go to the end, so that the times measured longest ago are removed first.
void Merge(const v1::ModelTimes& newer, v1::ModelTimes& known) {
  std::set<LayerPartKey> measured;
  for (const v1::LayerTime& time : newer.time()) measured.insert(KeyOf(time));
  auto& times = *known.mutable_time();
  times.erase(
      std::remove_if(times.begin(), times.end(),
                     [&](const v1::LayerTime& time) { return measured.count(KeyOf(time)) != 0; }),
      times.end());
  times.MergeFrom(newer.time());
  times.DeleteSubrange(0, std::max(0, times.size() - kMaxLayerTimes));
}

absl::Status CheckLayerTime(const v1::LayerTime& time, absl::Duration limit) {
  CADRE_RETURN_IF_ERROR(CheckTime(time.forward(), limit));
  CADRE_RETURN_IF_ERROR(CheckTime(time.backward(), limit));
  if (time.layer().size() > kMaxLayerNameCharacters) {
    return absl::InvalidArgumentError("the name of a layer is too long");
  }
  const bool possible = time.samples() >= 1 && time.samples() <= kMaxParts &&
                        time.rows() <= kMaxParts && time.outs() <= kMaxParts &&
                        time.ins() <= kMaxParts;
  if (possible) return absl::OkStatus();
  return absl::InvalidArgumentError("a layer time is of an impossible part");
}

}  // namespace

absl::Status CheckMeasured(const v1::Measured& measured, absl::Duration limit) {
  const v1::StepTimes& times = measured.times();
  for (const double seconds :
       {times.step(), times.compute(), times.moves(), times.collectives(), times.update(),
        times.exposed(), measured.update_seconds(), measured.copy_seconds()}) {
    CADRE_RETURN_IF_ERROR(CheckTime(seconds, limit));
  }
  if (times.step() <= 0) return absl::InvalidArgumentError("the step time is 0");
  const v1::ModelTimes& layers = measured.layers();
  if (layers.name().size() > kMaxLayerNameCharacters) {
    return absl::InvalidArgumentError("the name of the model is too long");
  }
  if (layers.time_size() > kMaxLayerTimes) {
    return absl::InvalidArgumentError(
        absl::StrCat(layers.time_size(), " layer times exceed the limit of ", kMaxLayerTimes));
  }
  for (const v1::LayerTime& time : layers.time()) {
    CADRE_RETURN_IF_ERROR(CheckLayerTime(time, limit));
  }
  return absl::OkStatus();
}

void RemoveUnknownLayers(const std::vector<std::string>& layers, v1::ModelTimes& times) {
  const std::set<absl::string_view> known(layers.begin(), layers.end());
  auto& all = *times.mutable_time();
  all.erase(
      std::remove_if(all.begin(), all.end(),
                     [&](const v1::LayerTime& time) { return known.count(time.layer()) == 0; }),
      all.end());
}

void Measurements::Load(const std::string& key, const v1::LayerTimesRecord& record) {
  times_[key] = {.order = ++sequence_, .record = record};
}

std::string Measurements::EvictIfFull(const std::string& key) {
  if (times_.size() < kMaxModels || times_.count(key) != 0) return "";
  const auto oldest = std::min_element(
      times_.begin(), times_.end(),
      [](const auto& a, const auto& b) { return a.second.order < b.second.order; });
  std::string evicted = oldest->first;
  times_.erase(oldest);
  return evicted;
}

Measurements::Update Measurements::Record(absl::string_view device, absl::string_view model,
                                          const v1::Measured& measured) {
  std::string key = LayerTimesKey(device, model);
  std::string evicted = EvictIfFull(key);
  times_[key].order = ++sequence_;
  v1::LayerTimesRecord& record = times_[key].record;
  record.set_device(std::string(device));
  record.mutable_times()->set_model(std::string(model));
  if (!measured.layers().name().empty()) record.mutable_times()->set_name(measured.layers().name());
  Merge(measured.layers(), *record.mutable_times());
  if (measured.update_seconds() > 0) record.set_update_seconds(measured.update_seconds());
  if (measured.copy_seconds() > 0) record.set_copy_seconds(measured.copy_seconds());
  return {.key = std::move(key), .record = &record, .evicted = std::move(evicted)};
}

const v1::LayerTimesRecord* Measurements::TimesOf(absl::string_view device,
                                                  absl::string_view model) const {
  const auto it = times_.find(LayerTimesKey(device, model));
  return it == times_.end() ? nullptr : &it->second.record;
}

namespace {

// Host names contain no line feed.
std::string Joined(const std::vector<std::string>& hosts) { return absl::StrJoin(hosts, "\n"); }

std::pair<std::string, std::string> KeysOf(std::vector<std::string> hosts) {
  std::sort(hosts.begin(), hosts.end());
  const std::string all = Joined(hosts);
  hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
  return {Joined(hosts), all};
}

}  // namespace

void Measurements::RecordLink(const std::vector<std::string>& hosts, const v1::LinkProfile& link) {
  const auto [set, all] = KeysOf(hosts);
  Link& known = links_[set][all];
  by_age_.erase(known.order);
  known = {.order = ++sequence_, .link = link};
  by_age_[known.order] = {set, all};
  if (by_age_.size() > kMaxLinks) EvictOldestLink();
}

void Measurements::EvictOldestLink() {
  const auto [set, all] = by_age_.begin()->second;
  by_age_.erase(by_age_.begin());
  const auto links = links_.find(set);
  links->second.erase(all);
  if (links->second.empty()) links_.erase(links);
}

std::optional<v1::LinkProfile> Measurements::LinkOf(const std::vector<std::string>& hosts) const {
  const auto [set, all] = KeysOf(hosts);
  const auto links = links_.find(set);
  if (links == links_.end()) return std::nullopt;
  const auto exact = links->second.find(all);
  if (exact != links->second.end()) return exact->second.link;
  const auto newest = std::max_element(
      links->second.begin(), links->second.end(),
      [](const auto& a, const auto& b) { return a.second.order < b.second.order; });
  return newest->second.link;
}

}  // namespace cadre
