// Two probes share this program: the layer probe, with one process per worker of the host, and the
// link probe, with one process per host. `cadre probe` runs the layer probe on each host, and
// passes its result to the link probe.
#include "worker/probe_program.h"

#include <cstdio>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "model/text_message.h"
#include "plan/cluster_profile.h"
#include "proto/cadre/v1/profile.pb.h"
#include "worker/probe/host_probe.h"

namespace cadre {
namespace {

// Enough for many plans of a model with thousands of layers.
constexpr int64_t kMaxRequestBytes = int64_t{256} << 20;

// Text requests are written by hand; `cadre probe` writes binary ones.
absl::StatusOr<v1::ProbeRequest> ReadRequest(const std::string& path) {
  v1::ProbeRequest request;
  if (absl::EndsWith(path, ".textproto")) {
    CADRE_RETURN_IF_ERROR(
        ReadTextMessage(path, kMaxRequestBytes, "a probe request in text format", request)
            .status());
    return request;
  }
  CADRE_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxRequestBytes));
  if (!request.ParseFromString(bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a probe request"));
  }
  return request;
}

absl::StatusOr<v1::ClusterProfile> Probe(const ProbeProgramOptions& options) {
  MachineProbeOptions machine = options.machine;
  if (!options.hosts.empty()) {
    CADRE_ASSIGN_OR_RETURN(const v1::ClusterProfile own,
                           ReadClusterProfile(machine.folder + "/own"));
    return ProbeHosts(own, options.hosts, machine.rank, absl::Now() + options.meet_timeout,
                      machine.deadline);
  }
  CADRE_ASSIGN_OR_RETURN(const v1::ProbeRequest request, ReadRequest(options.request));
  machine.progress = [rank = machine.rank](int done, int plans) {
    // `cadre probe` parses this line.
    if (rank == 0) std::fprintf(stderr, "probe: plan %d of %d\n", done, plans);
  };
  return ProbeMachine(request, machine);
}

}  // namespace

absl::Status RunProbeProgram(const ProbeProgramOptions& options) {
  CADRE_ASSIGN_OR_RETURN(const v1::ClusterProfile profile, Probe(options));
  if (options.machine.rank != 0) return absl::OkStatus();
  return WriteFileAtomically(options.machine.folder + "/profile", PrintClusterProfile(profile));
}

}  // namespace cadre
