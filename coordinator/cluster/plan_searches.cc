#include "coordinator/cluster/plan_searches.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "plan/layer_part.h"

namespace cadre {
namespace {

// Number of answers that are kept.
constexpr size_t kMaxAnswers = 256;
// Number of searches without an answer for which no group waits.
constexpr size_t kMaxImprovements = 64;
// Similar links differ by at most this factor in each of their numbers.
constexpr double kLinkFactor = 1.25;
// Similar layer times differ in sum by at most this share of all times, as groups replan only for a
// gain of as much (kMinGain).
constexpr double kTimesShare = 0.1;

// The answers to the searches of a run have keys with this prefix.
std::string PrefixOf(absl::string_view run) { return absl::StrCat(run, "\n"); }

bool HaveEqualResources(const PlanQuery& a, const PlanQuery& b) {
  if (a.ranks.size() != b.ranks.size() || a.spec.cluster().device() != b.spec.cluster().device()) {
    return false;
  }
  // The names of hosts do not matter, but which ranks share one.
  std::map<absl::string_view, absl::string_view> hosts;
  std::map<absl::string_view, absl::string_view> back;
  for (size_t i = 0; i < a.ranks.size(); ++i) {
    const RankResources& mine = a.ranks[i];
    const RankResources& other = b.ranks[i];
    if (mine.cores != other.cores || mine.memory_bytes != other.memory_bytes ||
        hosts.try_emplace(mine.host, other.host).first->second != other.host ||
        back.try_emplace(other.host, mine.host).first->second != mine.host) {
      return false;
    }
  }
  return true;
}

bool AreSimilar(double a, double b) {
  return a == b || std::max(a, b) <= kLinkFactor * std::min(a, b);
}

bool AreSimilar(const std::optional<v1::LinkProfile>& a, const std::optional<v1::LinkProfile>& b) {
  if (!a.has_value() || !b.has_value()) return a.has_value() == b.has_value();
  return a->kind() == b->kind() && AreSimilar(a->alpha(), b->alpha()) &&
         AreSimilar(a->beta(), b->beta()) && AreSimilar(a->gamma(), b->gamma()) &&
         AreSimilar(a->processor(), b->processor());
}

bool AreSimilar(const v1::LayerTimesRecord& a, const v1::LayerTimesRecord& b) {
  if (a.device() != b.device() || a.times().time_size() != b.times().time_size() ||
      !AreSimilar(a.update_seconds(), b.update_seconds()) ||
      !AreSimilar(a.copy_seconds(), b.copy_seconds())) {
    return false;
  }
  std::map<LayerPartKey, const v1::LayerTime*> others;
  for (const v1::LayerTime& time : b.times().time()) others[KeyOf(time)] = &time;
  double all = 0;
  double difference = 0;
  for (const v1::LayerTime& time : a.times().time()) {
    const auto other = others.find(KeyOf(time));
    if (other == others.end()) return false;
    all += other->second->forward() + other->second->backward();
    difference += std::abs(time.forward() - other->second->forward()) +
                  std::abs(time.backward() - other->second->backward());
  }
  return difference <= kTimesShare * all;
}

bool AreSimilar(const PlanQuery& a, const PlanQuery& b) {
  return HaveEqualResources(a, b) && AreSimilar(a.link, b.link) && AreSimilar(a.inside, b.inside) &&
         a.times.size() == b.times.size() &&
         std::equal(a.times.begin(), a.times.end(), b.times.begin(),
                    [](const auto& x, const auto& y) { return AreSimilar(x, y); });
}

}  // namespace

const absl::StatusOr<std::vector<GroupPlan>>& PlanSearches::PlansFor(const v1::RunRecord& run,
                                                                     uint64_t epoch,
                                                                     PlanQuery query, bool urgent,
                                                                     Outbox& out) {
  const std::string prefix = absl::StrCat(PrefixOf(run.run()), run.lineage(), "\n");
  for (auto it = searches_.lower_bound(prefix);
       it != searches_.end() && absl::StartsWith(it->first, prefix); ++it) {
    Search& search = it->second;
    if (!AreSimilar(search.query, query)) continue;
    if (absl::IsUnavailable(search.plans.status()) && urgent && !search.urgent) {
      search.urgent = true;
      --improvements_;
      out.Add(SearchPlans{run.run(), it->first, search.query, urgent});
    }
    return search.plans;
  }
  if (!urgent && improvements_ >= kMaxImprovements) return postponed_;
  improvements_ += urgent ? 0 : 1;
  const std::string key = absl::StrCat(prefix, epoch, "\n", ++last_);
  Search& search = searches_[key];
  search = {std::move(query), urgent, absl::UnavailableError("searching a plan")};
  out.Add(SearchPlans{run.run(), key, search.query, urgent});
  return search.plans;
}

void PlanSearches::OnFound(const PlansFound& found) {
  const auto known = searches_.find(found.key);
  if (known == searches_.end()) return;
  Search& search = known->second;
  // An urgent search may have been answered before it was repeated.
  if (!absl::IsUnavailable(search.plans.status())) return;
  search.plans = found.plans;
  improvements_ -= search.urgent ? 0 : 1;
  // Specs may be large; similar queries are of the same run.
  const v1::Cluster::Device device = search.query.spec.cluster().device();
  search.query.spec.Clear();
  search.query.spec.mutable_cluster()->set_device(device);
  // A search without an answer is kept: its run would request it again, at the expense of others.
  answered_.push_back(found.key);
  if (answered_.size() > kMaxAnswers) {
    searches_.erase(answered_.front());
    answered_.pop_front();
  }
}

bool PlanSearches::IsAwaited(absl::string_view run) const {
  const std::string prefix = PrefixOf(run);
  for (auto it = searches_.lower_bound(prefix);
       it != searches_.end() && absl::StartsWith(it->first, prefix); ++it) {
    if (it->second.urgent && absl::IsUnavailable(it->second.plans.status())) return true;
  }
  return false;
}

}  // namespace cadre
