#include "coordinator/plan/machine.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "spec/cluster_profile.h"

namespace cadre {
namespace {

int64_t CountOf(const v1::HostProfile& host) { return std::max(1U, host.count()); }
int64_t WorkersOn(const v1::HostProfile& host) { return std::max(1U, host.workers()); }

// Counts are anybody's 32 bits.
constexpr int64_t kMost = int64_t{1} << 60;
int64_t SaturatingSum(int64_t a, int64_t b) { return std::min(kMost, a + b); }
int64_t SaturatingProduct(int64_t a, int64_t b) { return a > kMost / b ? kMost : a * b; }

// What can be told of an unmeasured part from the parts that were measured.
using Times = std::map<LayerPart, LayerSeconds>;

LayerSeconds Scaled(const LayerSeconds& seconds, double factor) {
  return {seconds.forward * factor, seconds.backward * factor};
}

bool CutAlike(const LayerPart& a, const LayerPart& b) {
  return a.rows == b.rows && a.outs == b.outs && a.ins == b.ins;
}

// Linear in work between the nearest below and above; in proportion beyond them.
LayerSeconds Between(const std::vector<std::pair<double, LayerSeconds>>& by_work, double work) {
  const auto above = std::find_if(by_work.begin(), by_work.end(),
                                  [&](const auto& entry) { return entry.first >= work; });
  if (above == by_work.begin()) return Scaled(above->second, work / above->first);
  if (above == by_work.end()) return Scaled(by_work.back().second, work / by_work.back().first);
  const auto below = std::prev(above);
  const double share = (work - below->first) / (above->first - below->first);
  const auto mix = [&](double a, double b) { return a + share * (b - a); };
  return {mix(below->second.forward, above->second.forward),
          mix(below->second.backward, above->second.backward)};
}

// The larger of each number; what was timed is kept only while all links are the same.
void Worsen(const LinkProfile& other, LinkProfile* link) {
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

// The hosts that [first, first + ranks) of the workers are on.
struct Span {
  // Entries of the profile, and of how many machines of each some worker is wanted.
  std::map<int, int64_t> machines;
  // Ranks after which a host ends.
  int64_t stride = 0;
};

Span HostsOf(const v1::ClusterProfile& profile, int64_t first, int64_t ranks) {
  Span span;
  int64_t begin = 0;
  const int64_t last = first + ranks;
  for (int h = 0; h < profile.host_size(); ++h) {
    const v1::HostProfile& host = profile.host(h);
    const int64_t workers = WorkersOn(host);
    const int64_t end = SaturatingSum(begin, SaturatingProduct(workers, CountOf(host)));
    const int64_t from = std::max(begin, first);
    const int64_t to = std::min(end, last);
    if (from < to) {
      span.machines[h] = (to - 1 - begin) / workers - (from - begin) / workers + 1;
      // The first border of a host in the range, and the distance of further ones.
      const int64_t border = begin + ((from - begin) / workers + 1) * workers;
      if (border < last) span.stride = std::gcd(span.stride, border - first);
      if (border + workers < std::min(end + 1, last)) {
        span.stride = std::gcd(span.stride, workers);
      }
    }
    begin = end;
  }
  if (span.stride == 0) span.stride = ranks;
  return span;
}

absl::StatusOr<LinkProfile> WorstBetween(const v1::ClusterProfile& profile, const Span& span) {
  // Names, and whether there are two machines of the name.
  std::map<std::string, bool> names;
  const auto entries = static_cast<int64_t>(span.machines.size());
  int64_t wanted = entries * (entries - 1) / 2;
  for (const auto& [h, machines] : span.machines) {
    names[profile.host(h).name()] = machines > 1;
    if (machines > 1) ++wanted;
  }
  LinkProfile worst;
  for (const v1::HostLink& link : profile.link()) {
    const auto from = names.find(link.from());
    if (from == names.end() || !names.contains(link.to())) continue;
    if (link.from() == link.to() && !from->second) continue;
    CADRE_ASSIGN_OR_RETURN(const LinkProfile measured, LinkProfileFromProto(link.link()));
    Worsen(measured, &worst);
    --wanted;
  }
  if (wanted > 0 && profile.has_default_link()) {
    CADRE_ASSIGN_OR_RETURN(const LinkProfile other, LinkProfileFromProto(profile.default_link()));
    Worsen(other, &worst);
  }
  return worst;
}

const v1::DeviceProfile* FindDevice(const v1::ClusterProfile& profile, const std::string& name) {
  for (const v1::DeviceProfile& device : profile.device()) {
    if (device.name() == name) return &device;
  }
  return nullptr;
}

// The slowest device of those in the span says what computing takes.
void TakeDevice(const v1::DeviceProfile& device, const std::string& model, const Graph& graph,
                GroupMachine* machine) {
  if (machine->flops > 0 && device.flops() >= machine->flops) return;
  machine->flops = device.flops();
  machine->update_seconds = device.update_seconds();
  machine->copy_seconds = device.copy_seconds();
  machine->times = MeasuredLayers();
  for (const v1::ModelTimes& times : device.model()) {
    if (times.model() == model) machine->times = MeasuredLayers(times, graph);
  }
}

}  // namespace

MeasuredLayers::MeasuredLayers(const v1::ModelTimes& times, const Graph& graph) {
  std::map<std::string, int> numbers;
  for (int l = 0; l < graph.size(); ++l) numbers[graph[l].name] = l;
  const auto parts = [](uint32_t value) { return static_cast<int>(std::max(1U, value)); };
  for (const v1::LayerTime& time : times.time()) {
    const auto number = numbers.find(time.layer());
    if (number == numbers.end() || time.samples() == 0) continue;
    const LayerPart part{time.samples(), parts(time.rows()), parts(time.outs()), parts(time.ins())};
    times_[number->second][part] = {time.forward(), time.backward()};
  }
}

std::optional<LayerSeconds> MeasuredLayers::Of(int layer, const LayerPart& part) const {
  const auto found = times_.find(layer);
  if (found == times_.end()) return std::nullopt;
  const Times& times = found->second;
  if (const auto exact = times.find(part); exact != times.end()) return exact->second;
  // What is cut alike reads as many weights; only where there is none does other work tell.
  std::vector<std::pair<double, LayerSeconds>> alike;
  std::vector<std::pair<double, LayerSeconds>> all;
  for (const auto& [measured, seconds] : times) {
    all.emplace_back(measured.work(), seconds);
    if (CutAlike(measured, part)) alike.push_back(all.back());
  }
  std::vector<std::pair<double, LayerSeconds>>& by_work = alike.empty() ? all : alike;
  std::sort(by_work.begin(), by_work.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  return Between(by_work, part.work());
}

const LinkProfile& GroupMachine::LinkOf(const Mesh& mesh,
                                        const std::vector<std::string>& axes) const {
  if (per_host <= 1 || !inside.known()) return link;
  // Ranks that differ along these axes alone lie within a run of the widest axis's stride times its
  // size.
  int64_t stride = 1;
  int64_t reach = 1;
  for (auto axis = mesh.axes().rbegin(); axis != mesh.axes().rend(); ++axis) {
    const bool used = std::find(axes.begin(), axes.end(), axis->name) != axes.end();
    if (used && axis->size > 1) reach = stride * axis->size;
    stride *= axis->size;
  }
  return per_host % reach == 0 ? inside : link;
}

LayerSeconds GroupMachine::SecondsOf(const GraphLayer& layer, int number,
                                     const LayerPart& part) const {
  if (const auto measured = times.Of(number, part)) return *measured;
  if (flops <= 0) return {};
  const double forward = static_cast<double>(layer.flops) * part.work() / flops;
  return {.forward = forward, .backward = 2 * forward};
}

GroupMachine UniformMachine(const LinkProfile& link, double flops) {
  GroupMachine machine;
  machine.link = link;
  machine.flops = flops;
  return machine;
}

int64_t WorkersOf(const v1::ClusterProfile& profile) {
  int64_t workers = 0;
  for (const v1::HostProfile& host : profile.host()) {
    workers = SaturatingSum(workers, SaturatingProduct(CountOf(host), WorkersOn(host)));
  }
  return workers;
}

absl::StatusOr<GroupMachine> MachineOf(const v1::ClusterProfile& profile, const v1::Model& model,
                                       const Graph& graph, int first_worker, int ranks) {
  CADRE_RETURN_IF_ERROR(CheckProfile(profile));
  const int64_t workers = WorkersOf(profile);
  if (int64_t{first_worker} + ranks > workers) {
    return absl::InvalidArgumentError(absl::StrCat("the profile's hosts have ", workers,
                                                   " workers, ", int64_t{first_worker} + ranks,
                                                   " are wanted"));
  }
  const Span span = HostsOf(profile, first_worker, ranks);
  const std::string key = ModelKey(model);
  GroupMachine machine;
  machine.per_host = static_cast<int>(std::min<int64_t>(span.stride, ranks));
  for (const auto& [h, machines] : span.machines) {
    const v1::HostProfile& host = profile.host(h);
    TakeDevice(*FindDevice(profile, host.device()), key, graph, &machine);
    if (WorkersOn(host) > 1) {
      CADRE_ASSIGN_OR_RETURN(const LinkProfile inside, LinkProfileFromProto(host.inside()));
      Worsen(inside, &machine.inside);
    }
    if (host.memory_bytes() > 0) {
      const auto bytes = static_cast<int64_t>(host.memory_bytes());
      machine.memory_bytes =
          machine.memory_bytes == 0 ? bytes : std::min(machine.memory_bytes, bytes);
    }
    if (host.cores() > 0) {
      const double share = static_cast<double>(host.cores()) * machine.per_host /
                           static_cast<double>(WorkersOn(host));
      machine.cores = machine.cores == 0 ? share : std::min(machine.cores, share);
    }
  }
  CADRE_ASSIGN_OR_RETURN(machine.link, WorstBetween(profile, span));
  if (!machine.link.known()) machine.link = machine.inside;
  machine.link_kind = "profile";
  return machine;
}

}  // namespace cadre
