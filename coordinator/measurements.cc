#include "coordinator/measurements.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "coordinator/keys.h"
#include "spec/layer_part.h"

namespace cadre {
namespace {

// Kinds of device, each with each of its models.
constexpr size_t kMostModels = 1024;
// Samples, or parts of one index: of no layer are there more.
constexpr uint32_t kMostParts = 1U << 30;

bool IsTime(double seconds) { return std::isfinite(seconds) && seconds >= 0; }

// What is new goes to the end, so that what was not measured for longest is forgotten first.
void Merge(const v1::ModelTimes& from, v1::ModelTimes& into) {
  std::set<LayerPartKey> measured;
  for (const v1::LayerTime& time : from.time()) measured.insert(KeyOf(time));
  auto& times = *into.mutable_time();
  times.erase(
      std::remove_if(times.begin(), times.end(),
                     [&](const v1::LayerTime& time) { return measured.count(KeyOf(time)) != 0; }),
      times.end());
  times.MergeFrom(from.time());
  const int extra = times.size() - kMostLayerTimes;
  if (extra > 0) times.DeleteSubrange(0, extra);
}

absl::Status CheckLayerTime(const v1::LayerTime& time) {
  if (!IsTime(time.forward()) || !IsTime(time.backward())) {
    return absl::InvalidArgumentError("a layer has a time that is no time");
  }
  if (time.layer().size() > kMostLayerNameCharacters) {
    return absl::InvalidArgumentError("the name of a layer is longer than any layer has");
  }
  const bool possible = time.samples() >= 1 && time.samples() <= kMostParts &&
                        time.rows() <= kMostParts && time.outs() <= kMostParts &&
                        time.ins() <= kMostParts;
  if (possible) return absl::OkStatus();
  return absl::InvalidArgumentError("a part of a layer was timed that no layer can have");
}

}  // namespace

absl::Status CheckMeasured(const v1::Measured& measured) {
  const v1::StepTimes& times = measured.times();
  for (const double seconds :
       {times.step(), times.compute(), times.moves(), times.collectives(), times.update(),
        times.exposed(), measured.update_seconds(), measured.copy_seconds()}) {
    if (!IsTime(seconds)) return absl::InvalidArgumentError(absl::StrCat(seconds, " is no time"));
  }
  if (times.step() <= 0) return absl::InvalidArgumentError("its steps take no time");
  const v1::ModelTimes& layers = measured.layers();
  if (layers.name().size() > kMostLayerNameCharacters) {
    return absl::InvalidArgumentError("the name of the model is too long");
  }
  if (layers.time_size() > kMostLayerTimes) {
    return absl::InvalidArgumentError(absl::StrCat("it has times of ", layers.time_size(),
                                                   " layers; there may be ", kMostLayerTimes));
  }
  for (const v1::LayerTime& time : layers.time()) CADRE_RETURN_IF_ERROR(CheckLayerTime(time));
  return absl::OkStatus();
}

void KeepLayers(const std::vector<std::string>& layers, v1::ModelTimes& times) {
  const std::set<absl::string_view> known(layers.begin(), layers.end());
  auto& all = *times.mutable_time();
  all.erase(
      std::remove_if(all.begin(), all.end(),
                     [&](const v1::LayerTime& time) { return known.count(time.layer()) == 0; }),
      all.end());
}

void Measurements::Load(const std::string& key, const v1::LayerTimesRecord& record) {
  times_[key] = {.order = ++learnt_, .record = record};
}

std::string Measurements::MakeRoom(const std::string& key) {
  if (times_.size() < kMostModels || times_.count(key) != 0) return "";
  const auto oldest = std::min_element(
      times_.begin(), times_.end(),
      [](const auto& a, const auto& b) { return a.second.order < b.second.order; });
  std::string forgotten = oldest->first;
  times_.erase(oldest);
  return forgotten;
}

Measurements::Learnt Measurements::Learn(absl::string_view device, absl::string_view model,
                                         const v1::Measured& measured) {
  std::string key = LayerTimesKey(device, model);
  std::string forgotten = MakeRoom(key);
  times_[key].order = ++learnt_;
  v1::LayerTimesRecord& record = times_[key].record;
  record.set_device(std::string(device));
  record.mutable_times()->set_model(std::string(model));
  if (!measured.layers().name().empty()) record.mutable_times()->set_name(measured.layers().name());
  Merge(measured.layers(), *record.mutable_times());
  if (measured.update_seconds() > 0) record.set_update_seconds(measured.update_seconds());
  if (measured.copy_seconds() > 0) record.set_copy_seconds(measured.copy_seconds());
  return {.key = std::move(key), .record = &record, .forgotten = std::move(forgotten)};
}

const v1::LayerTimesRecord* Measurements::TimesOf(absl::string_view device,
                                                  absl::string_view model) const {
  const auto it = times_.find(LayerTimesKey(device, model));
  return it == times_.end() ? nullptr : &it->second.record;
}

namespace {

// Names of hosts are other programs' choice; a line feed is in none.
std::string Joined(const std::vector<std::string>& hosts) { return absl::StrJoin(hosts, "\n"); }

std::pair<std::string, std::string> KeysOf(std::vector<std::string> hosts) {
  std::sort(hosts.begin(), hosts.end());
  const std::string all = Joined(hosts);
  hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
  return {Joined(hosts), all};
}

}  // namespace

void Measurements::LearnLink(const std::vector<std::string>& hosts, const v1::LinkProfile& link) {
  const auto [set, all] = KeysOf(hosts);
  Link& known = links_[set][all];
  by_age_.erase(known.order);
  known = {.order = ++learnt_, .link = link};
  by_age_[known.order] = {set, all};
  if (by_age_.size() > kMostLinks) ForgetOldestLink();
}

void Measurements::ForgetOldestLink() {
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
