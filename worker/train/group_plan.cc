#include "worker/train/group_plan.h"

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "comm/link_probe.h"
#include "member/agreement.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "plan/cost/collective_cost.h"
#include "plan/plan.h"
#include "plan/plan_collectives.h"
#include "proto/enum_text.h"

namespace cadre {
namespace {

absl::StatusOr<v1::Plan> Choose(const v1::RunSpec& spec, const v1::Plan& assigned,
                                const v1::LinkProfile& link, bool has_native) {
  CADRE_ASSIGN_OR_RETURN(const LinkProfile profile, LinkProfileFromProto(link));
  CADRE_ASSIGN_OR_RETURN(const Graph graph, Graph::FromModel(spec.model()));
  const ParameterIndex index = ParameterIndex::FromGraph(graph);
  CADRE_ASSIGN_OR_RETURN(Plan plan, PlanFromProto(assigned, graph, index));
  plan = WithCollectives(std::move(plan), graph, index, spec.cluster().collectives(), profile,
                         link.kind());
  CADRE_RETURN_IF_ERROR(CheckNative(plan, has_native));
  return PlanToProto(plan, index);
}

// The key of the cache: identifies the processes of the group and their links.
std::vector<std::string> KeyOf(const v1::Assignment& assignment, v1::LinkProfile::Kind kind) {
  std::vector<std::string> key(assignment.peers().begin(), assignment.peers().end());
  key.push_back(EnumText(kind));
  return key;
}

// The profile of the links, if the assignment or rank 0's cache contains one; otherwise empty.
v1::LinkProfile KnownLink(const v1::Assignment& assignment, v1::LinkProfile::Kind kind,
                          LinkCache* cache) {
  if (assignment.plan().link().beta() > 0 || cache == nullptr) return assignment.plan().link();
  return cache->Get(KeyOf(assignment, kind), absl::Now()).value_or(v1::LinkProfile());
}

absl::StatusOr<LinkProfile> Measure(Communicator& all, Transport& data, Backend& kernels) {
  if (!data.on_device()) return MeasureLink(all);
  Communicator all_data = WholeGroup(data);
  return MeasureDeviceLink(all_data, all, kernels);
}

absl::StatusOr<v1::LinkProfile> MeasuredLink(const v1::Assignment& assignment,
                                             v1::LinkProfile::Kind kind, Communicator& all,
                                             Transport& data, Backend& kernels, LinkCache* cache) {
  CADRE_ASSIGN_OR_RETURN(const LinkProfile measured, Measure(all, data, kernels));
  v1::LinkProfile link = LinkProfileToProto(measured);
  link.set_kind(kind);
  if (cache != nullptr) cache->Put(KeyOf(assignment, kind), link, absl::Now());
  return link;
}

}  // namespace

absl::StatusOr<v1::LinkProfile::Kind> KindOfLinks(const Transport& data, Communicator& all) {
  if (data.on_device()) return v1::LinkProfile::NCCL;
  uint64_t counts[3] = {};
  auto& [threads, tcp, shared_memory] = counts;
  for (int peer = 0; peer < data.size(); ++peer) {
    threads += data.link(peer) == LinkKind::kThreads;
    tcp += data.link(peer) == LinkKind::kTcp;
    shared_memory += data.link(peer) == LinkKind::kSharedMemory;
  }
  CADRE_RETURN_IF_ERROR(all.AllReduceSum(std::span<uint64_t>(counts)));
  if (threads > 0) return v1::LinkProfile::THREADS;
  if (tcp == 0) return v1::LinkProfile::SHARED_MEMORY;
  return shared_memory > 0 ? v1::LinkProfile::SHARED_MEMORY_AND_TCP : v1::LinkProfile::TCP;
}

std::optional<v1::LinkProfile> LinkCache::Get(const std::vector<std::string>& peers,
                                              absl::Time now) {
  absl::MutexLock lock(&mutex_);
  ForgetOld(now);
  const auto it = entries_.find(peers);
  return it == entries_.end() ? std::nullopt : std::optional(it->second.link);
}

void LinkCache::Put(const std::vector<std::string>& peers, const v1::LinkProfile& link,
                    absl::Time now) {
  absl::MutexLock lock(&mutex_);
  ForgetOld(now);
  entries_[peers] = {link, now};
}

void LinkCache::ForgetOld(absl::Time now) {
  for (auto it = entries_.begin(); it != entries_.end();) {
    it = now - it->second.measured > kKept ? entries_.erase(it) : std::next(it);
  }
}

absl::StatusOr<v1::Plan> SettlePlan(const v1::RunSpec& spec, const v1::Assignment& assignment,
                                    Transport& control, Transport& data, Backend& kernels,
                                    LinkCache* cache) {
  if (control.size() == 1) return assignment.plan();
  Communicator all = WholeGroup(control);
  CADRE_ASSIGN_OR_RETURN(const v1::LinkProfile::Kind kind, KindOfLinks(data, all));
  v1::LinkProfile link = KnownLink(assignment, kind, cache);
  uint64_t known = link.beta() > 0 ? 1 : 0;
  CADRE_RETURN_IF_ERROR(all.Broadcast(std::as_writable_bytes(std::span(&known, 1)), 0));
  if (known == 0) {
    CADRE_ASSIGN_OR_RETURN(link, MeasuredLink(assignment, kind, all, data, kernels, cache));
  }
  // Only rank 0 chooses: logarithms may differ in the last bit between processors.
  absl::StatusOr<v1::Plan> chosen = v1::Plan();
  if (control.rank() == 0) {
    chosen = Choose(spec, assignment.plan(), link, data.has_native());
  }
  CADRE_RETURN_IF_ERROR(Agree(chosen.status(), all));
  CADRE_ASSIGN_OR_RETURN(const std::string bytes, BroadcastText(chosen->SerializeAsString(), all));
  v1::Plan plan;
  if (!plan.ParseFromString(bytes)) return absl::InternalError("rank 0's plan cannot be read");
  return plan;
}

}  // namespace cadre
