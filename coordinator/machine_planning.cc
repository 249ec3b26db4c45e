// What groups measure, what is predicted of them, and plans that are better. Part of Machine.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "coordinator/keys.h"
#include "coordinator/machine.h"
#include "coordinator/run.h"

namespace cadre {
namespace {

// Pins do not forbid it: plans are searched for under them, and where they leave no choice the
// present plan is the best.
bool MayReplan(const v1::RunSpec& spec) { return Averages(spec) && !spec.cluster().keep_plan(); }

// A run that only an accuracy ends is taken to be half over.
uint64_t StepsLeft(const v1::RunRecord& run) {
  const uint32_t total = TotalSteps(run);
  return total == 0 ? run.step() - FirstStep(run.spec()) : total - std::min(total, run.step());
}

// Where a worker's link ends, as measurements know it: GPUs have other links than their hosts.
std::string LinkEndOf(const v1::MemberRecord& worker) {
  const bool cuda = KindOfDevice(worker.device()) == v1::CUDA;
  return cuda ? absl::StrCat(worker.host(), " (CUDA)") : worker.host();
}

// All that a search goes by, but for the run: equal for groups on machines that are alike.
std::string MachineKey(const PlanningQuestion& question) {
  std::map<std::string, size_t> hosts;
  std::string key;
  for (const RankMachine& rank : question.ranks) {
    const size_t host = hosts.try_emplace(rank.host, hosts.size()).first->second;
    absl::StrAppend(&key, host, " ", rank.cores, " ", rank.memory_bytes, "\n");
  }
  for (const auto& link : {question.link, question.inside}) {
    const std::string bytes = link.has_value() ? link->SerializeAsString() : "";
    absl::StrAppend(&key, link.has_value(), " ", bytes.size(), "\n", bytes);
  }
  // Times do not change within a call: which they are says enough.
  for (const v1::LayerTimesRecord& times : question.times) {
    absl::StrAppend(&key, times.device().size(), "\n", times.device());
  }
  return key;
}

}  // namespace

// Workers that have a place share their host with the group; idle ones take nothing of it.
std::map<std::string, int> Machine::WorkersByHost(const std::vector<std::string>& members) const {
  const std::set<absl::string_view> here(members.begin(), members.end());
  std::map<std::string, int> sharing;
  for (const auto& [id, member] : members_.all()) {
    if (!member.worker()) continue;
    if (member.place.has_value() || here.count(id) != 0) ++sharing[member.record.host()];
  }
  return sharing;
}

PlanningQuestion Machine::QuestionFor(const Job& job,
                                      const std::vector<std::string>& members) const {
  PlanningQuestion question{.spec = &job.spec()};
  const std::map<std::string, int> sharing = WorkersByHost(members);
  std::vector<std::string> hosts;
  std::set<std::string> devices;
  for (const std::string& id : members) {
    const Member* const member = members_.Find(id);
    if (member == nullptr) continue;
    const std::string& host = member->record.host();
    const int workers = sharing.at(host);
    // A host's memory is all its workers'; of a GPU each says what it may take itself.
    const bool cuda = KindOfDevice(member->record.device()) == v1::CUDA;
    question.ranks.push_back(
        {.host = host,
         .device = member->record.device(),
         .cores = static_cast<double>(member->cores) / workers,
         .memory_bytes = static_cast<int64_t>(member->memory_bytes) / (cuda ? 1 : workers)});
    hosts.push_back(LinkEndOf(member->record));
    devices.insert(member->record.device());
  }
  if (hosts.empty()) return question;
  question.link = measurements_.LinkOf(hosts);
  const auto first = std::count(hosts.begin(), hosts.end(), hosts.front());
  if (first > 1 && first < static_cast<int64_t>(hosts.size())) {
    question.inside =
        measurements_.LinkOf(std::vector<std::string>(static_cast<size_t>(first), hosts.front()));
  }
  const std::string model = options_.planning->KeyOf(job.spec().model());
  for (const std::string& device : devices) {
    const v1::LayerTimesRecord* const times = measurements_.TimesOf(device, model);
    if (times == nullptr) {
      question.times.clear();
      break;
    }
    question.times.push_back(*times);
  }
  return question;
}

// Other groups on the same hosts have measured since what their own link is.
PlanningQuestion Machine::QuestionFor(const Job& job, const Slot& slot) const {
  PlanningQuestion question = QuestionFor(job, slot.members());
  if (slot.plan().link().beta() > 0) question.link = slot.plan().link();
  return question;
}

const absl::StatusOr<std::vector<GroupPlan>>& Machine::PlansFor(const Job& job,
                                                                const PlanningQuestion& question) {
  const auto [it, added] = searched_.try_emplace(absl::StrCat(job.id(), "\n", MachineKey(question)),
                                                 absl::UnknownError("not searched yet"));
  if (added) it->second = options_.planning->PlansFor(question);
  return it->second;
}

absl::StatusOr<v1::Plan> Machine::PlanGroup(const Job& job, const Slot& slot,
                                            const std::vector<std::string>& members) {
  // What the rules refuse nobody may train.
  CADRE_ASSIGN_OR_RETURN(v1::Plan by_rules,
                         options_.plan(job.spec(), static_cast<int>(members.size())));
  if (options_.planning == nullptr || job.spec().cluster().keep_plan()) return by_rules;
  const absl::StatusOr<std::vector<GroupPlan>>& plans = PlansFor(job, QuestionFor(job, members));
  CADRE_RETURN_IF_ERROR(plans.status());
  return FastestOf(*plans, slot.plans()).plan;
}

void Machine::LearnLink(const Slot& slot) {
  if (slot.ranks() <= 1 || !(slot.plan().link().beta() > 0)) return;
  std::vector<std::string> hosts;
  for (const std::string& id : slot.record().members()) {
    const Member* const member = members_.Find(id);
    if (member == nullptr) return;
    hosts.push_back(LinkEndOf(member->record));
  }
  measurements_.LearnLink(hosts, slot.plan().link());
}

void Machine::PredictGroup(const Job& job, Slot& slot) {
  if (options_.planning == nullptr || slot.record().has_predicted()) return;
  const auto predicted = options_.planning->Predict(QuestionFor(job, slot), slot.plan());
  if (predicted.ok()) slot.Predict(*predicted, /*from_own_measurement=*/false);
}

// Comes again after every reconnect; taking it once more changes nothing. One that cannot be is
// dropped and the stream stays: it would come again before anything else on the next.
void Machine::OnMeasured(Member& member, const v1::Measured& measured) {
  Job* const job = PlacedLead(member, measured.place());
  if (job == nullptr) return;
  if (!CheckMeasured(measured).ok()) {
    CountRefusal(v1::REFUSAL_MALFORMED);
    return;
  }
  Slot& slot = job->slots[measured.place().group()];
  if (!slot.started()) return;
  slot.measured = measured.times();
  slot.better.reset();
  slot.considered = false;
  if (options_.planning == nullptr) return;
  LearnTimes(*job, member, measured);
  const auto now = options_.planning->Predict(QuestionFor(*job, slot), slot.plan());
  // What was known when it started has been predicted from; otherwise this is what is known.
  if (now.ok() && !slot.record().has_predicted()) {
    slot.Predict(*now, /*from_own_measurement=*/true);
  }
  slot.LearnPlan(measured.times().step(), now.ok() ? std::optional(now->step()) : std::nullopt);
  Save(slot);
}

void Machine::LearnTimes(const Job& job, const Member& member, v1::Measured measured) {
  const v1::Model& model = job.spec().model();
  KeepLayers(options_.planning->LayersOf(model), *measured.mutable_layers());
  const Measurements::Learnt learnt =
      measurements_.Learn(member.record.device(), options_.planning->KeyOf(model), measured);
  if (!learnt.forgotten.empty()) out_.EraseOne(learnt.forgotten);
  out_.Put(learnt.key, *learnt.record);
}

bool Machine::ComesBack(const Job& job, const Slot& slot) const {
  for (const std::string& id : slot.record().members()) {
    const Member* const member = members_.Find(id);
    if (member == nullptr || member->connection == 0) return false;
  }
  // Whoever waits would take them.
  for (const auto& [number, other] : jobs_) {
    if (!other.live() || number > RunNumber(job.id())) continue;
    if (std::any_of(other.slots.begin(), other.slots.end(),
                    [](const Slot& waiting) { return waiting.waiting(); })) {
      return false;
    }
  }
  return true;
}

// A search may take long, in large groups: once in a call is enough, as one group moves at a time.
void Machine::ConsiderPlan(const Job& job, Slot& slot) {
  if (slot.considered || std::exchange(considered_, true)) return;
  slot.considered = true;
  const auto& plans = PlansFor(job, QuestionFor(job, slot));
  if (!plans.ok()) return;
  slot.better = BetterThan(slot.plan(), slot.measured->step(), *plans, slot.plans());
}

// At a commit a group holds nothing that is not committed: it is released, and its slot forms anew,
// at once, of the same members, with the plan that is better.
bool Machine::ReplanInstead(Job& job, Slot& slot) {
  if (options_.planning == nullptr || !slot.measured.has_value() || !MayReplan(job.spec())) {
    return false;
  }
  const uint64_t steps = StepsLeft(job.record);
  const PlanChange most{.now_seconds = slot.measured->step()};
  if (job.record.state() != v1::RUNNING || !Pays(most, steps, slot.formation())) return false;
  if (!ComesBack(job, slot)) return false;
  ConsiderPlan(job, slot);
  if (!slot.better.has_value() || !Pays(*slot.better, steps, slot.formation())) return false;
  Count("groups_replanned");
  // Whatever other groups on these hosts have measured since: it forms by what was considered here.
  LearnLink(slot);
  const std::vector<std::string> members = slot.members();
  // By value: the slot forgets what would be better.
  Fence(job, slot, InWords(PlanChange(*slot.better)), Ending::kOrderly);
  slot.StopWaiting();
  slot.again = members;
  return true;
}

}  // namespace cadre
