// A list schedule of the tapes of all ranks: each rank has a clock and executes the passes of its
// stage in order, and in each pass the operations of its tape.
//
//   compute   takes the measured time of the part of the layer, or the time that follows from work
//   send      costs the rank nothing. Its messages leave when the messages before them, in the
//             order of their receives, have left; a message takes alpha + beta bytes of the
//             sender's link
//   receive   ends when the last of its messages has arrived
//   exchange  begins when its last member has reached it, and takes the alpha-beta time of the
//             member that sends or receives most
//
// So two things are modelled that a plan without placements does not have: ranks that wait for
// other ranks' layers, and messages that share the sender's link. Not modelled: contention for the
// receiver's link, that a rank receives one message at a time, the slowdown of compute by the
// threads that send and receive, waits for memory from which a message is still sent, and that the
// first message of a forward pass arrives only when the backward pass in the same memory has ended
// (plan/pipeline.cc). All micro-batches are as large as the largest.
//
// The schedule always progresses, because ranks cannot deadlock (plan/tape.cc, plan/pipeline.cc).
// Cost: linear in the operations of all tapes and passes, times the number of ranks in the worst
// case; a receive visits all earlier messages of the sender.
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
  Simulation(const PlanProblem& problem, const Plan& plan, const PassOrder& order)
      : problem_(problem),
        plan_(plan),
        order_(order),
        graph_(*problem.graph),
        ranks_(plan.mesh.ranks()) {
    for (int number = 0; number < plan.mesh.ranks(); ++number) {
      Rank& rank = ranks_[number];
      // The seconds of a fused operation are those of its layers.
      rank.tape = MakeTape(graph_, plan, number, LargestMicroBatch(problem), /*training=*/true,
                           DType::kFloat32, PlacedMoves::kSendAndReceive, Fusion::kOff);
      const auto loss = std::find_if(rank.tape.ops.begin(), rank.tape.ops.end(),
                                     [](const TapeOp& op) { return op.kind == TapeOpKind::kLoss; });
      rank.forward_ops = loss + 1 - rank.tape.ops.begin();
      rank.passes = order.OfStage(StageIn(order, plan.mesh, number));
      for (const Pass pass : rank.passes) {
        for (size_t i = rank.begin(pass); i < rank.end(pass); ++i) {
          const TapeOp& op = rank.tape.ops[i];
          if (op.kind == TapeOpKind::kSend) rank.sends[NumberOf(rank, op, pass)] = {};
        }
      }
    }
  }

  std::vector<PlacedRankTime> Run() {
    bool done = false;
    while (!done) {
      bool progressed = false;
      done = true;
      for (int rank = 0; rank < std::ssize(ranks_); ++rank) {
        while (!ranks_[rank].done() && Step(rank)) progressed = true;
        done = done && ranks_[rank].done();
      }
      CHECK(done || progressed) << "the tapes wait for one another";
    }
    std::vector<PlacedRankTime> times;
    for (const Rank& rank : ranks_) times.push_back(rank.time);
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
    // The forward pass, with the loss, is the operations before this one.
    size_t forward_ops = 0;
    std::span<const Pass> passes;
    // The pass that is played, and how many of its operations were.
    size_t pass = 0;
    size_t played = 0;
    PlacedRankTime time;
    // By number.
    std::map<uint32_t, Message> sends;

    size_t begin(Pass of) const { return of.backward ? forward_ops : 0; }
    size_t end(Pass of) const { return of.backward ? tape.ops.size() : forward_ops; }
    bool done() const { return pass == passes.size(); }
    const TapeOp& op() const { return tape.ops[begin(passes[pass]) + played]; }
    void Advance() {
      ++played;
      SkipEmptyPasses();
    }
    void SkipEmptyPasses() {
      while (!done() && begin(passes[pass]) + played == end(passes[pass])) {
        ++pass;
        played = 0;
      }
    }
  };
  // Identifies an exchange on all its members: micro-batch, kind, layer, input, step.
  using ExchangeKey = std::tuple<int, TapeOpKind, int, int, size_t, std::vector<int>>;
  struct Meeting {
    int arrived = 0;
    double begin = 0;
    double seconds = 0;
  };

  uint32_t NumberOf(const Rank& rank, const TapeOp& op, Pass pass) const {
    return MessageNumber(order_, graph_, plan_, op, pass, rank.tape.orders);
  }

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
    const TapeOp& op = rank.op();
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
    rank.Advance();
    return true;
  }

  void Send(Rank& rank, const TapeOp& op) {
    const Exchange& step = op.move.steps[0];
    Message& message = rank.sends[NumberOf(rank, op, rank.passes[rank.pass])];
    message.ready = rank.time.end;
    for (const Exchange::Message& part : step.sends) {
      const int to = step.members[part.peer];
      message.seconds[to] = MessageSeconds(current_, to, part.box.shape().elements());
    }
    rank.time.elements_sent += step.elements_sent();
  }

  // When a message arrives; nullopt if that is not known yet.
  static std::optional<double> Arrival(const Rank& sender, uint32_t wanted, int receiver) {
    double link_free = 0;
    for (const auto& [number, message] : sender.sends) {
      if (!message.ready) return std::nullopt;
      link_free = std::max(link_free, *message.ready);
      for (const auto& [to, seconds] : message.seconds) {
        link_free += seconds;
        if (number == wanted && to == receiver) return link_free;
      }
    }
    return 0;
  }

  bool Receive(Rank& rank, const TapeOp& op) {
    const Exchange& step = op.move.steps[0];
    double arrived = rank.time.end;
    for (const Exchange::Message& message : step.receives) {
      if (message.peer == step.index) continue;
      const uint32_t number = NumberOf(rank, op, rank.passes[rank.pass]);
      const auto arrival = Arrival(ranks_[step.members[message.peer]], number, current_);
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
      Meeting& meeting = meetings_[{rank.passes[rank.pass].micro_batch, op.kind, op.layer, op.input,
                                    s, step.members}];
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
    rank.Advance();
    return true;
  }

  const PlanProblem& problem_;
  const Plan& plan_;
  const PassOrder& order_;
  const Graph& graph_;
  std::vector<Rank> ranks_;
  std::map<ExchangeKey, Meeting> meetings_;
  std::set<std::pair<int, const Meeting*>> entered_;
  // The rank that is being simulated.
  int current_ = 0;
};

}  // namespace

std::vector<PlacedRankTime> SimulatePasses(const PlanProblem& problem, const Plan& plan,
                                           const PassOrder& order) {
  return Simulation(problem, plan, order).Run();
}

}  // namespace cadre
