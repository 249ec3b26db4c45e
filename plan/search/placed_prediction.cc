// A list schedule of the tapes of all ranks: each rank has a clock and executes its tape in order.
//
//   compute   takes the measured time of the part of the layer, or the time that follows from work
//   send      costs the rank nothing. Its messages leave when the messages before them, in the
//   order
//             of their receives, have left; a message takes alpha + beta bytes of the sender's link
//   receive   ends when the last of its messages has arrived
//   exchange  begins when its last member has reached it, and takes the alpha-beta time of the
//             member that sends or receives most
//
// So two things are modelled that a plan without placements does not have: ranks that wait for
// other ranks' layers, and messages that share the sender's link. Not modelled: contention for the
// receiver's link, and the slowdown of compute by the sending thread. Every micro-batch of a step
// takes the same time.
//
// The schedule always progresses, because ranks cannot deadlock (plan/tape.cc).
// Cost: linear in the operations of all tapes, times the number of ranks in the worst case.
#include "plan/search/placed_prediction.h"

#include <glog/logging.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "plan/cost/communication_cost.h"
#include "plan/layer_part.h"
#include "plan/search/layer_bytes.h"
#include "plan/tape.h"

namespace cadre {
namespace {

class Simulation {
 public:
  Simulation(const PlanProblem& problem, const Plan& plan)
      : problem_(problem), plan_(plan), graph_(*problem.graph), ranks_(plan.mesh.ranks()) {
    for (int rank = 0; rank < plan.mesh.ranks(); ++rank) {
      ranks_[rank].tape = MakeTape(graph_, plan, rank, LargestMicroBatch(problem),
                                   /*training=*/true);
      for (const TapeOp& op : ranks_[rank].tape.ops) {
        if (op.kind == TapeOpKind::kSend) ranks_[rank].sends[op.order] = {};
      }
    }
  }

  std::vector<PlacedRankTime> Run() {
    bool done = false;
    while (!done) {
      bool progressed = false;
      done = true;
      for (int rank = 0; rank < std::ssize(ranks_); ++rank) {
        while (ranks_[rank].next < ranks_[rank].tape.ops.size() && Step(rank)) progressed = true;
        done = done && ranks_[rank].next == ranks_[rank].tape.ops.size();
      }
      CHECK(done || progressed) << "the tapes wait for one another";
    }
    std::vector<PlacedRankTime> times;
    for (Rank& rank : ranks_) {
      PlacedRankTime time = rank.time;
      for (double* part : {&time.end, &time.compute, &time.moves, &time.elements_sent}) {
        *part *= problem_.micro_batches;
      }
      times.push_back(time);
    }
    return times;
  }

 private:
  struct Message {
    // When its data was computed; nullopt: not yet.
    std::optional<double> ready;
    // By receiver: seconds on the link.
    std::map<int, double> seconds;
  };
  struct Rank {
    Tape tape;
    size_t next = 0;
    PlacedRankTime time;
    // By order.
    std::map<int, Message> sends;
  };
  // Identifies an exchange on all its members: kind, layer, input, step.
  using ExchangeKey = std::tuple<TapeOpKind, int, int, size_t, std::vector<int>>;
  struct Meeting {
    int arrived = 0;
    double begin = 0;
    double seconds = 0;
  };

  double ComputeSeconds(const TapeOp& op) const {
    const LayerLayouts& layouts = plan_.layers[op.layer];
    const LayerPart part = PartOf(layouts, plan_.mesh, LargestMicroBatch(problem_));
    const LayerSeconds seconds = problem_.hardware.SecondsOf(graph_[op.layer], op.layer, part);
    switch (op.kind) {
      case TapeOpKind::kForward:
        return seconds.forward;
      case TapeOpKind::kBackward:
        return seconds.backward;
      case TapeOpKind::kLoss:
        // A rank without the loss has no rows of it.
        return plan_.mesh.IsAt(current_, layouts.at) ? seconds.forward + seconds.backward : 0;
      default:
        return 0;
    }
  }

  double MessageSeconds(int from, int to, int64_t elements) const {
    std::vector<std::string> axes;
    for (const Mesh::Axis& axis : plan_.mesh.axes()) {
      if (plan_.mesh.Coordinate(from, axis.name) != plan_.mesh.Coordinate(to, axis.name)) {
        axes.push_back(axis.name);
      }
    }
    const LinkProfile& link = problem_.hardware.LinkOf(plan_.mesh, axes);
    const int64_t bytes_per_element = problem_.bf16_weights ? 2 : kBytesPerWord;
    return link.alpha + link.beta * bytes_per_element * elements;
  }

  // Seconds of the messages that a rank sends, or receives, in an exchange.
  double SecondsOf(const Exchange& step, const std::vector<Exchange::Message>& messages) const {
    double seconds = 0;
    for (const Exchange::Message& message : messages) {
      if (message.peer == step.index) continue;
      seconds +=
          MessageSeconds(current_, step.members[message.peer], message.box.shape().elements());
    }
    return seconds;
  }

  // Executes the next operation of the rank, if it need not wait for other ranks.
  bool Step(int number) {
    current_ = number;
    Rank& rank = ranks_[number];
    const TapeOp& op = rank.tape.ops[rank.next];
    switch (op.kind) {
      case TapeOpKind::kSend:
        Send(rank, op);
        break;
      case TapeOpKind::kReceive:
        if (!Receive(rank, op)) return false;
        break;
      case TapeOpKind::kMove:
      case TapeOpKind::kMoveGradient:
        return Meet(rank, op);
      default: {
        const double seconds = ComputeSeconds(op);
        rank.time.compute += seconds;
        rank.time.end += seconds;
      }
    }
    ++rank.next;
    return true;
  }

  void Send(Rank& rank, const TapeOp& op) {
    const Exchange& step = op.move.steps[0];
    Message& message = rank.sends[op.order];
    message.ready = rank.time.end;
    for (const Exchange::Message& part : step.sends) {
      const int to = step.members[part.peer];
      message.seconds[to] = MessageSeconds(current_, to, part.box.shape().elements());
    }
    rank.time.elements_sent += step.elements_sent();
  }

  // When a message arrives; nullopt if that is not known yet.
  static std::optional<double> Arrival(const Rank& sender, int order, int receiver) {
    double link_free = 0;
    for (const auto& [number, message] : sender.sends) {
      if (!message.ready) return std::nullopt;
      link_free = std::max(link_free, *message.ready);
      for (const auto& [to, seconds] : message.seconds) {
        link_free += seconds;
        if (number == order && to == receiver) return link_free;
      }
    }
    return 0;
  }

  bool Receive(Rank& rank, const TapeOp& op) {
    const Exchange& step = op.move.steps[0];
    double arrived = rank.time.end;
    for (const Exchange::Message& message : step.receives) {
      if (message.peer == step.index) continue;
      const auto arrival = Arrival(ranks_[step.members[message.peer]], op.order, current_);
      if (!arrival) return false;
      arrived = std::max(arrived, *arrival);
    }
    rank.time.moves += arrived - rank.time.end;
    rank.time.end = arrived;
    return true;
  }

  // The steps of a move, one after the other. Returns false if other members are not there yet.
  bool Meet(Rank& rank, const TapeOp& op) {
    double end = rank.time.end;
    for (size_t s = 0; s < op.move.steps.size(); ++s) {
      const Exchange& step = op.move.steps[s];
      Meeting& meeting = meetings_[{op.kind, op.layer, op.input, s, step.members}];
      // Each member adds itself once.
      if (entered_.insert({current_, &meeting}).second) {
        ++meeting.arrived;
        meeting.begin = std::max(meeting.begin, end);
        meeting.seconds = std::max(
            {meeting.seconds, SecondsOf(step, step.sends), SecondsOf(step, step.receives)});
      }
      if (meeting.arrived < std::ssize(step.members)) return false;
      end = meeting.begin + meeting.seconds;
    }
    for (const Exchange& step : op.move.steps) rank.time.elements_sent += step.elements_sent();
    rank.time.moves += end - rank.time.end;
    rank.time.end = end;
    ++rank.next;
    return true;
  }

  const PlanProblem& problem_;
  const Plan& plan_;
  const Graph& graph_;
  std::vector<Rank> ranks_;
  std::map<ExchangeKey, Meeting> meetings_;
  std::set<std::pair<int, const Meeting*>> entered_;
  // The rank that is being simulated.
  int current_ = 0;
};

}  // namespace

std::vector<PlacedRankTime> SimulatePasses(const PlanProblem& problem, const Plan& plan) {
  return Simulation(problem, plan).Run();
}

}  // namespace cadre
