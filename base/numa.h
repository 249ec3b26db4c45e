// The NUMA nodes of the host: CPUs with memory of their own, which other CPUs reach more slowly.
// The kernel gives a page to the node of the thread that first writes to it, so the memory of a
// process that is bound to the CPUs of one node is there as well.
//
// Thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cadre {

struct NumaNode {
  int number = 0;
  // In ascending order.
  std::vector<int> cpus;
};

// Where Linux describes the nodes.
inline constexpr char kNumaFolder[] = "/sys/devices/system/node";

// The nodes that have some of these CPUs, with these CPUs only, by number. A host without a
// description of its nodes has one. Requires: `cpus` is in ascending order. Errors: InvalidArgument
// for a malformed description, NotFound for an incomplete one.
absl::StatusOr<std::vector<NumaNode>> NumaNodesOf(const std::vector<int>& cpus,
                                                  const std::string& folder = kNumaFolder);

// The nodes whose CPUs the calling thread may use; none if their description cannot be read.
std::vector<NumaNode> UsableNumaNodes();

// The node for one of several processes with equal numbers of threads, which share these nodes in
// proportion to their CPUs; neighboring processes share a node. Returns nullopt if there is only
// one node, or if the process has more threads than the node has CPUs.
std::optional<int> NumaNodeOfProcess(const std::vector<NumaNode>& nodes, int process, int processes,
                                     int threads);

// Binds the calling thread, and threads that it starts afterwards, to those CPUs of a node that it
// may use. Errors: InvalidArgument if it may use none; those of NumaNodesOf.
absl::Status BindToNumaNode(int number, const std::string& folder = kNumaFolder);

}  // namespace cadre
