// cadre-worker: one compute device that trains as a member of a group.
#include <gflags/gflags.h>
#include <glog/logging.h>

#include <unistd.h>

#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/daemon.h"
#include "base/identity.h"
#include "base/program_flags.h"
#include "worker/transport/tcp_link.h"
#include "worker/worker.h"

DEFINE_string(coordinator, "127.0.0.1:7000",
              "host:port of the coordinator; all else is told by it");
DEFINE_string(listen, "127.0.0.1:0",
              "where the other ranks of a group connect; port 0 takes a free one");
DEFINE_string(advertise, "",
              "host:port that the other ranks are told; default: --listen with the port taken");
DEFINE_string(name, "", "name for people, unique on its host; default: host name and process id");
DEFINE_int32(threads, 1, "compute threads");
DEFINE_bool(reference_kernels, false,
            "compute with plain loops instead of oneDNN (slow; to check)");
DEFINE_bool(shared_memory, true, "reach ranks of this host through shared memory");
DEFINE_int32(tcp_lanes, 0,
             "TCP connections to each rank elsewhere; 0: as many as the round trip asks for");
DEFINE_bool(insecure, false, "listen beyond loopback although nothing is encrypted");
DEFINE_int32(dial_timeout, 30, "seconds to look for the coordinator at start");

namespace {

constexpr char kUsage[] =
    "trains as a member of whatever group the coordinator assigns.\n\n"
    "  cadre-worker --coordinator=10.0.0.5:7000 --listen=0.0.0.0:7002 \\\n"
    "      --advertise=10.0.0.17:7002 --threads=8 --insecure\n\n"
    "It needs no other configuration: model, data, plan and peers come from the coordinator.\n"
    "Ends on SIGTERM or SIGINT (0). Exit 1: failure, 2: wrong flags, 4: no coordinator,\n"
    "64: refused by the coordinator for good.";

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;
constexpr int kExitUnavailable = 4;
// Trying again cannot help; deploy/kubernetes/worker.yaml fails the Job on it.
constexpr int kExitRefused = 64;

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "cadre-worker: %s\n", std::string(status.message()).c_str());
  if (absl::IsFailedPrecondition(status)) return kExitRefused;
  return absl::IsUnavailable(status) ? kExitUnavailable : kExitFailure;
}

bool IsLoopback(const std::string& address) {
  return address.rfind("127.", 0) == 0 || address.rfind("localhost:", 0) == 0 ||
         address.rfind("[::1]:", 0) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  cadre::BlockTerminationSignals();
  if (const auto ended =
          cadre::ParseProgramFlags(kUsage, CADRE_VERSION, "worker/main", &argc, &argv)) {
    return *ended;
  }
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(argv[0]);
  if (FLAGS_threads < 1) {
    std::fprintf(stderr, "cadre-worker: --threads=%d must be at least 1\n", FLAGS_threads);
    return kExitUsage;
  }
  if (FLAGS_tcp_lanes < 0 || FLAGS_tcp_lanes > cadre::kMostLanes) {
    std::fprintf(stderr, "cadre-worker: --tcp_lanes=%d must be 0 to %d\n", FLAGS_tcp_lanes,
                 cadre::kMostLanes);
    return kExitUsage;
  }
  if (!FLAGS_insecure && !IsLoopback(FLAGS_listen)) {
    std::fprintf(stderr,
                 "cadre-worker: refusing to listen on %s, where nothing is encrypted; use a "
                 "loopback address, or say --insecure if the network is trusted\n",
                 FLAGS_listen.c_str());
    return kExitUsage;
  }
  cadre::WorkerOptions options;
  options.coordinator = FLAGS_coordinator;
  options.dial_timeout = absl::Seconds(FLAGS_dial_timeout);
  options.listen = FLAGS_listen;
  options.advertise = FLAGS_advertise;
  options.name = FLAGS_name.empty() ? absl::StrCat(cadre::HostName(), "-", getpid()) : FLAGS_name;
  options.threads = FLAGS_threads;
  options.reference_kernels = FLAGS_reference_kernels;
  options.shared_memory = FLAGS_shared_memory;
  options.tcp_lanes = FLAGS_tcp_lanes;

  auto worker = cadre::Worker::Start(options);
  if (!worker.ok()) return Fail(worker.status());
  const int signal = cadre::WaitForTermination();
  LOG(INFO) << "ending on signal " << signal;
  return 0;
}
