// Reduces a profile to what the planner models: one kind of rank, and two links. A group whose
// hosts differ computes at the speed of the slowest device and communicates over the slowest link,
// because every step waits for all ranks.
//
// Compute times are measured for some parts of every layer and interpolated by work for others. The
// work of a part is its samples times its fractions of rows, outputs and inputs. Measured parts
// with the same splits are preferred, because the time per unit of work depends on the operands'
// shapes.
#include "plan/search/hardware_model.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plan/cluster_profile.h"
#include "tensor/interval.h"

namespace cadre {
namespace {

int64_t CountOf(const v1::HostProfile& host) { return std::max(1U, host.count()); }
int64_t WorkersOn(const v1::HostProfile& host) { return std::max(1U, host.workers()); }

// Workers of all hosts.
int64_t WorkersOf(const v1::ClusterProfile& profile) {
  int64_t workers = 0;
  for (const v1::HostProfile& host : profile.host()) workers += CountOf(host) * WorkersOn(host);
  return workers;
}

using Times = std::map<LayerPart, LayerSeconds>;

LayerSeconds Scale(const LayerSeconds& seconds, double factor) {
  return {seconds.forward * factor, seconds.backward * factor};
}

bool SplitAlike(const LayerPart& a, const LayerPart& b) {
  return a.rows == b.rows && a.outs == b.outs && a.ins == b.ins;
}

// Linear in work between the nearest smaller and larger entries, proportional beyond them.
LayerSeconds InterpolateByWork(const std::vector<std::pair<double, LayerSeconds>>& by_work,
                               double work) {
  const auto above = std::find_if(by_work.begin(), by_work.end(),
                                  [&](const auto& entry) { return entry.first >= work; });
  if (above == by_work.begin()) return Scale(above->second, work / above->first);
  if (above == by_work.end()) return Scale(by_work.back().second, work / by_work.back().first);
  const auto below = std::prev(above);
  const double share = (work - below->first) / (above->first - below->first);
  const auto mix = [&](double a, double b) { return a + share * (b - a); };
  return {mix(below->second.forward, above->second.forward),
          mix(below->second.backward, above->second.backward)};
}

// Takes the larger of each number. Timed samples are kept only if all links are equal.
void TakeSlower(const LinkProfile& other, LinkProfile* link) {
  if (!link->known()) {
    *link = other;
    return;
  }
  const bool same = link->alpha == other.alpha && link->beta == other.beta;
  link->alpha = std::max(link->alpha, other.alpha);
  link->beta = std::max(link->beta, other.beta);
  link->gamma = std::max(link->gamma, other.gamma);
  link->processor = std::max(link->processor, other.processor);
  if (!same) link->samples.clear();
}

// The hosts that a group's workers use.
struct GroupHosts {
  // By entry of the profile: the number of its hosts that the group uses.
  std::map<int, int64_t> count;
  // The largest number that divides the positions of all host boundaries within the group.
  int64_t stride = 0;
};

GroupHosts HostsOf(const v1::ClusterProfile& profile, const Interval& group) {
  GroupHosts hosts;
  int64_t begin = 0;
  for (int h = 0; h < profile.host_size(); ++h) {
    const v1::HostProfile& host = profile.host(h);
    const int64_t workers = WorkersOn(host);
    const int64_t end = begin + workers * CountOf(host);
    const Interval here = Intersect(group, {begin, end});
    if (!here.empty()) {
      hosts.count[h] = (here.end - 1 - begin) / workers - (here.begin - begin) / workers + 1;
      // The first host boundary in the group, and the distance to further ones.
      const int64_t border = begin + ((here.begin - begin) / workers + 1) * workers;
      if (border < group.end) hosts.stride = std::gcd(hosts.stride, border - group.begin);
      if (border + workers < std::min(end + 1, group.end)) {
        hosts.stride = std::gcd(hosts.stride, workers);
      }
    }
    begin = end;
  }
  if (hosts.stride == 0) hosts.stride = group.size();
  return hosts;
}

absl::StatusOr<LinkProfile> SlowestLink(const v1::ClusterProfile& profile,
                                        const GroupHosts& hosts) {
  // By name: whether the group uses two hosts of that name.
  std::map<std::string, bool> names;
  const int64_t entries = std::ssize(hosts.count);
  int64_t missing_links = entries * (entries - 1) / 2;
  for (const auto& [h, count] : hosts.count) {
    names[profile.host(h).name()] = count > 1;
    if (count > 1) ++missing_links;
  }
  LinkProfile slowest;
  for (const v1::HostLink& link : profile.link()) {
    const auto from = names.find(link.from());
    if (from == names.end() || !names.contains(link.to())) continue;
    if (link.from() == link.to() && !from->second) continue;
    CADRE_ASSIGN_OR_RETURN(const LinkProfile measured, LinkProfileFromProto(link.link()));
    TakeSlower(measured, &slowest);
    --missing_links;
  }
  if (missing_links > 0 && profile.has_default_link()) {
    CADRE_ASSIGN_OR_RETURN(const LinkProfile other, LinkProfileFromProto(profile.default_link()));
    TakeSlower(other, &slowest);
  }
  return slowest;
}

const v1::DeviceProfile* FindDevice(const v1::ClusterProfile& profile, const std::string& name) {
  for (const v1::DeviceProfile& device : profile.device()) {
    if (device.name() == name) return &device;
  }
  return nullptr;
}

// Keeps the slowest device.
void TakeDevice(const v1::DeviceProfile& device, const std::string& model, const Graph& graph,
                HardwareModel* hardware) {
  if (hardware->flops > 0 && device.flops() >= hardware->flops) return;
  hardware->flops = device.flops();
  hardware->update_seconds = device.update_seconds();
  hardware->copy_seconds = device.copy_seconds();
  hardware->times = MeasuredLayers();
  for (const v1::ModelTimes& times : device.model()) {
    if (times.model() == model) hardware->times = MeasuredLayers(times, graph);
  }
}

}  // namespace

MeasuredLayers::MeasuredLayers(const v1::ModelTimes& times, const Graph& graph) {
  std::map<std::string, int> numbers;
  for (int l = 0; l < graph.size(); ++l) numbers[graph[l].name] = l;
  for (const v1::LayerTime& time : times.time()) {
    const auto number = numbers.find(time.layer());
    if (number == numbers.end() || time.samples() == 0) continue;
    times_[number->second][KeyOf(time).part] = {time.forward(), time.backward()};
  }
}

std::optional<LayerSeconds> MeasuredLayers::Of(int layer, const LayerPart& part) const {
  const auto found = times_.find(layer);
  if (found == times_.end()) return std::nullopt;
  const Times& times = found->second;
  if (const auto exact = times.find(part); exact != times.end()) return exact->second;
  // Parts with the same splits read as many weights; others are used only if there are none.
  std::vector<std::pair<double, LayerSeconds>> alike;
  std::vector<std::pair<double, LayerSeconds>> all;
  for (const auto& [measured, seconds] : times) {
    all.emplace_back(measured.work(), seconds);
    if (SplitAlike(measured, part)) alike.push_back(all.back());
  }
  std::vector<std::pair<double, LayerSeconds>>& by_work = alike.empty() ? all : alike;
  std::sort(by_work.begin(), by_work.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  return InterpolateByWork(by_work, part.work());
}

const LinkProfile& HardwareModel::LinkOf(const Mesh& mesh,
                                         const std::vector<std::string>& axes) const {
  if (per_host <= 1 || !inside.known()) return link;
  // Ranks that differ only along these axes lie within a block of the outermost axis's stride times
  // its size.
  int64_t stride = 1;
  int64_t reach = 1;
  for (auto axis = mesh.axes().rbegin(); axis != mesh.axes().rend(); ++axis) {
    const bool used = std::find(axes.begin(), axes.end(), axis->name) != axes.end();
    if (used && axis->size > 1) reach = stride * axis->size;
    stride *= axis->size;
  }
  return per_host % reach == 0 ? inside : link;
}

LayerSeconds HardwareModel::SecondsOf(const GraphLayer& layer, int number,
                                      const LayerPart& part) const {
  if (const auto measured = times.Of(number, part)) return *measured;
  if (flops <= 0) return {};
  const double forward = layer.flops * part.work() / flops;
  return {.forward = forward, .backward = 2 * forward};
}

HardwareModel UniformHardware(const LinkProfile& link, double flops) {
  HardwareModel hardware;
  hardware.link = link;
  hardware.flops = flops;
  return hardware;
}

absl::StatusOr<HardwareModel> HardwareOf(const v1::ClusterProfile& profile, const v1::Model& model,
                                         const Graph& graph, int first_worker, int ranks) {
  CADRE_RETURN_IF_ERROR(CheckProfile(profile));
  const int64_t workers = WorkersOf(profile);
  if (int64_t{first_worker} + ranks > workers) {
    return absl::InvalidArgumentError(absl::StrCat("the profile's hosts have ", workers,
                                                   " workers, ", int64_t{first_worker} + ranks,
                                                   " are required"));
  }
  const GroupHosts hosts = HostsOf(profile, {first_worker, int64_t{first_worker} + ranks});
  const std::string key = ModelKey(model);
  HardwareModel hardware;
  hardware.per_host = std::min<int64_t>(hosts.stride, ranks);
  for (const auto& [h, count] : hosts.count) {
    const v1::HostProfile& host = profile.host(h);
    TakeDevice(*FindDevice(profile, host.device()), key, graph, &hardware);
    if (WorkersOn(host) > 1) {
      CADRE_ASSIGN_OR_RETURN(const LinkProfile inside, LinkProfileFromProto(host.inside()));
      TakeSlower(inside, &hardware.inside);
    }
    if (host.memory_bytes() > 0) {
      const int64_t bytes = host.memory_bytes();
      hardware.memory_bytes =
          hardware.memory_bytes == 0 ? bytes : std::min(hardware.memory_bytes, bytes);
    }
    if (host.cores() > 0) {
      const double share = 1.0 * host.cores() * hardware.per_host / WorkersOn(host);
      hardware.cores = hardware.cores == 0 ? share : std::min(hardware.cores, share);
    }
  }
  CADRE_ASSIGN_OR_RETURN(hardware.link, SlowestLink(profile, hosts));
  if (!hardware.link.known()) hardware.link = hardware.inside;
  hardware.link_kind = v1::LinkProfile::PROFILE;
  return hardware;
}

}  // namespace cadre
