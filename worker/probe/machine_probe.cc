// Workers that share a host compete for memory bandwidth and for the clock frequency of the
// processor, so layers are timed by all of them simultaneously. The processes connect like the
// ranks of a group: each writes its address to a file, which is created atomically, and waits for
// the others' files.
//
// Every worker times the same plans, and all synchronize before each plan. Medians over workers are
// reported, because other processes may disturb single workers.
#include "worker/probe/machine_probe.h"

#include <map>
#include <memory>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/hardware.h"
#include "base/identity.h"
#include "base/median.h"
#include "base/protocol.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "comm/link_probe.h"
#include "comm/transport/connect_group.h"
#include "comm/transport/tcp_listener.h"
#include "kernels/backend.h"
#include "member/agreement.h"
#include "plan/cost/collective_cost.h"
#include "plan/layer_part.h"
#include "worker/probe/layer_probe.h"

namespace cadre {
namespace {

// Interval at which the folder is polled.
constexpr absl::Duration kPollInterval = absl::Milliseconds(5);
// Time after which a silent peer fails; building a large model takes a while.
constexpr absl::Duration kProbeTimeout = absl::Minutes(10);
constexpr int64_t kMaxAddressBytes = 1024;

std::string AddressFile(const std::string& folder, int rank) {
  return absl::StrCat(folder, "/address-", rank);
}

// Waits for the file with the address of worker `rank`.
absl::StatusOr<std::string> AddressOf(const MachineProbeOptions& options, int rank) {
  while (true) {
    absl::StatusOr<std::string> address =
        ReadFile(AddressFile(options.folder, rank), kMaxAddressBytes);
    if (address.ok() || !absl::IsNotFound(address.status())) return address;
    if (absl::Now() > options.deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("worker ", rank, " did not join the probe in time"));
    }
    absl::SleepFor(kPollInterval);
  }
}

absl::StatusOr<std::unique_ptr<Transport>> ConnectWorkers(TcpListener& listener,
                                                          const MachineProbeOptions& options) {
  CADRE_RETURN_IF_ERROR(
      WriteFileAtomically(AddressFile(options.folder, options.rank), listener.address()));
  std::vector<std::string> peers;
  for (int rank = 0; rank < options.ranks; ++rank) {
    CADRE_ASSIGN_OR_RETURN(std::string address, AddressOf(options, rank));
    peers.push_back(std::move(address));
  }
  const GroupIdentity group{.protocol = kProtocol, .run = "probe", .generation = 1};
  return ConnectGroup(listener, group, options.rank, peers,
                      {.deadline = options.deadline,
                       .timeout = kProbeTimeout,
                       .shared_memory = options.shared_memory});
}

// A collective. The result has the same bits on all members.
absl::StatusOr<v1::DeviceProfile> MergeOverGroup(const v1::DeviceProfile& own, Communicator& all) {
  CADRE_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                         GatherTexts(own.SerializeAsString(), all));
  std::vector<v1::DeviceProfile> devices(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    if (!devices[i].ParseFromString(texts[i])) {
      return absl::InternalError(absl::StrCat("cannot parse the profile of worker ", i));
    }
  }
  return MergeDevices(devices);
}

absl::StatusOr<v1::LinkProfile> InsideLink(Communicator& all, const Transport& transport) {
  CADRE_ASSIGN_OR_RETURN(const LinkProfile measured, MeasureLink(all));
  v1::LinkProfile link = LinkProfileToProto(measured);
  const bool shared = transport.link(transport.rank() == 0 ? 1 : 0) == LinkKind::kSharedMemory;
  link.set_kind(shared ? v1::LinkProfile::SHARED_MEMORY : v1::LinkProfile::TCP);
  return link;
}

v1::ClusterProfile MachineOf(const MachineProbeOptions& options, v1::DeviceProfile device) {
  v1::ClusterProfile profile;
  device.set_name(DeviceName(options.threads));
  v1::HostProfile& host = *profile.add_host();
  host.set_name(HostName());
  host.set_workers(options.ranks);
  host.set_device(device.name());
  host.set_memory_bytes(UsableMemoryBytes() / options.ranks);
  host.set_cores(options.host_cores);
  *profile.add_device() = std::move(device);
  return profile;
}

}  // namespace

v1::DeviceProfile MergeDevices(const std::vector<v1::DeviceProfile>& devices) {
  const auto median = [&](double (v1::DeviceProfile::*of)() const) {
    std::vector<double> values;
    for (const v1::DeviceProfile& device : devices) values.push_back((device.*of)());
    return Median(std::move(values));
  };
  v1::DeviceProfile merged;
  merged.set_name(devices.front().name());
  merged.set_flops(median(&v1::DeviceProfile::flops));
  merged.set_update_seconds(median(&v1::DeviceProfile::update_seconds));
  merged.set_copy_seconds(median(&v1::DeviceProfile::copy_seconds));
  // By model; parts in the order of their first occurrence.
  struct Model {
    v1::ModelTimes* times;
    std::map<LayerPartKey, std::pair<std::vector<double>, std::vector<double>>> parts;
    std::vector<LayerPartKey> order;
  };
  std::map<std::string, Model> models;
  for (const v1::DeviceProfile& device : devices) {
    for (const v1::ModelTimes& times : device.model()) {
      Model& model = models[times.model()];
      if (model.times == nullptr) {
        model.times = merged.add_model();
        model.times->set_model(times.model());
        model.times->set_name(times.name());
      }
      for (const v1::LayerTime& time : times.time()) {
        const LayerPartKey key = KeyOf(time);
        const auto [part, is_new] = model.parts.try_emplace(key);
        if (is_new) model.order.push_back(key);
        part->second.first.push_back(time.forward());
        part->second.second.push_back(time.backward());
      }
    }
  }
  for (const auto& [name, model] : models) {
    for (const LayerPartKey& key : model.order) {
      v1::LayerTime& time = *model.times->add_time();
      const auto& [forward, backward] = model.parts.at(key);
      time = TimeOf(key);
      time.set_forward(Median(forward));
      time.set_backward(Median(backward));
    }
  }
  return merged;
}

absl::StatusOr<v1::ClusterProfile> ProbeMachine(const v1::ProbeRequest& request,
                                                const MachineProbeOptions& options) {
  const std::unique_ptr<Backend> kernels = MakeCpuBackend(options.threads);
  // Without peers there is nothing to synchronize with.
  if (options.ranks == 1) {
    CADRE_ASSIGN_OR_RETURN(v1::DeviceProfile device,
                           ProbeLayers(request, *kernels, {.progress = options.progress}));
    return MachineOf(options, std::move(device));
  }
  CADRE_ASSIGN_OR_RETURN(const auto listener, TcpListener::Listen({}));
  CADRE_ASSIGN_OR_RETURN(const auto transport, ConnectWorkers(*listener, options));
  Communicator all = WholeGroup(*transport);
  const absl::StatusOr<v1::DeviceProfile> own = ProbeLayers(
      request, *kernels,
      {.before_each_plan = [&all] { return all.Barrier(); }, .progress = options.progress});
  if (!own.ok()) {
    // The other workers wait in a barrier.
    transport->Abort(own.status());
    return own.status();
  }
  CADRE_ASSIGN_OR_RETURN(v1::DeviceProfile device, MergeOverGroup(*own, all));
  v1::ClusterProfile profile = MachineOf(options, std::move(device));
  CADRE_ASSIGN_OR_RETURN(*profile.mutable_host(0)->mutable_inside(), InsideLink(all, *transport));
  return profile;
}

}  // namespace cadre
