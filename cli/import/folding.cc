#include "cli/import/folding.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "cli/import/onnx_file.h"
#include "model/ops/activations.h"

namespace cadre {
namespace {

double Truth(bool value) { return value ? 1 : 0; }

double IntegerOf(double value, double low, double high) {
  return std::isfinite(value) ? std::clamp(std::trunc(value), low, high) : 0;
}

// A whole number of moderate size: for positions and extents.
int64_t Whole(double value) { return static_cast<int64_t>(IntegerOf(value, -0x1p40, 0x1p40)); }

// Evaluates one node. Its inputs are numbers.
class Folder {
 public:
  Folder(const onnx::Node& node, const std::vector<Value>& inputs)
      : node_(node), inputs_(inputs), attributes_(node) {}

  using Function = absl::StatusOr<Value> (Folder::*)();

  // Null for operators that are not folded.
  static Function FunctionFor(const onnx::Node& node) {
    static const auto& functions = *new std::map<std::string, Function>{
        {"Cast", &Folder::Cast},
        {"CastLike", &Folder::Cast},
        {"Concat", &Folder::Concat},
        {"ConstantOfShape", &Folder::ConstantOfShape},
        {"CumSum", &Folder::CumSum},
        {"Gather", &Folder::Gather},
        {"GatherElements", &Folder::GatherElements},
        {"GatherND", &Folder::GatherNd},
        {"Range", &Folder::Range},
        {"Shape", &Folder::Shape},
        {"Size", &Folder::Size},
        {"Trilu", &Folder::Trilu},
        {"Where", &Folder::Where},
    };
    const auto found = functions.find(node.op_type());
    if (found != functions.end()) return found->second;
    return FunctionOf(node, /*integer=*/false) ? &Folder::Elementwise : nullptr;
  }

 private:
  const Value& in(size_t i) const { return inputs_[i]; }

  absl::Status Misfit() const {
    return absl::InvalidArgumentError(absl::StrCat(
        "its inputs ",
        absl::StrJoin(inputs_, ", ",
                      [](std::string* out, const Value& value) {
                        absl::StrAppend(out, "[", absl::StrJoin(value.view.sizes(), ", "), "]");
                      }),
        " do not fit each other or its attributes, or are too large"));
  }
  bool Has(size_t count) const { return inputs_.size() >= count; }

  absl::StatusOr<Value> Vector(std::vector<double> numbers, std::vector<int64_t> dims) {
    return NumbersOf(dims, std::move(numbers), true);
  }

  absl::StatusOr<Value> Size() {
    return Vector({static_cast<double>(inputs_[0].view.elements())}, {});
  }

  absl::StatusOr<Value> Shape() {
    const std::vector<int64_t> sizes = in(0).view.sizes();
    const int64_t rank = std::ssize(sizes);
    const auto at = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + rank : i, 0, rank); };
    const int64_t begin = at(attributes_.Integer("start", 0));
    const int64_t end = std::max(begin, at(attributes_.Integer("end", rank)));
    std::vector<double> part(sizes.begin() + begin, sizes.begin() + end);
    const int64_t length = std::ssize(part);
    return Vector(std::move(part), {length});
  }

  absl::StatusOr<Value> Range() {
    if (!Has(3)) return Misfit();
    for (int i = 0; i < 3; ++i) {
      if (in(i).view.elements() != 1) return Misfit();
    }
    const double start = NumbersIn(in(0))[0], limit = NumbersIn(in(1))[0];
    const double step = NumbersIn(in(2))[0];
    const double count = std::ceil((limit - start) / step);
    if (!(count <= kMaxFoldedElements) || !std::isfinite(start) || !std::isfinite(step)) {
      return Misfit();
    }
    std::vector<double> numbers;
    for (int64_t i = 0; i < count; ++i) numbers.push_back(start + i * step);
    const int64_t length = std::ssize(numbers);
    return NumbersOf({length}, std::move(numbers), in(0).integer);
  }

  absl::StatusOr<Value> ConstantOfShape() {
    std::vector<int64_t> dims;
    for (const double dim : NumbersIn(in(0))) dims.push_back(Whole(dim));
    if (!View::IsPossible(dims) || ProductOf(dims) > kMaxFoldedElements) return Misfit();
    double fill = 0;
    bool integer = false;
    if (const onnx::Attribute* value = attributes_.Find("value")) {
      CADRE_ASSIGN_OR_RETURN(const OnnxTensor one, DecodeTensor(value->t(), ""));
      if (one.floats.size() + one.numbers.size() != 1) return Misfit();
      fill = one.floats.empty() ? one.numbers[0] : one.floats[0];
      integer = one.integer;
    }
    return NumbersOf(dims, std::vector<double>(ProductOf(dims), fill), integer);
  }

  // The common shape of all inputs by NumPy's rules, and each input expanded to it.
  absl::StatusOr<std::vector<std::vector<double>>> Broadcast(std::vector<int64_t>* dims) {
    std::vector<std::vector<double>> all;
    View common;
    for (const Value& value : inputs_) {
      const auto wider = View(common.sizes()).Expanded(value.view.sizes());
      if (!wider) return Misfit();
      common = View(wider->sizes());
    }
    *dims = common.sizes();
    if (common.elements() > kMaxFoldedElements) return Misfit();
    for (Value value : inputs_) {
      const auto expanded = value.view.Expanded(*dims);
      if (!expanded || expanded->sizes() != *dims) return Misfit();
      value.view = *expanded;
      all.push_back(NumbersIn(value));
    }
    return all;
  }

  absl::StatusOr<Value> Where() {
    if (inputs_.size() != 3) return Misfit();
    std::vector<int64_t> dims;
    CADRE_ASSIGN_OR_RETURN(auto all, Broadcast(&dims));
    for (size_t i = 0; i < all[0].size(); ++i) all[1][i] = all[0][i] != 0 ? all[1][i] : all[2][i];
    return NumbersOf(dims, std::move(all[1]), in(1).integer);
  }

  absl::StatusOr<Value> Elementwise() {
    bool integer = true;
    for (const Value& value : inputs_) integer = integer && value.integer;
    const NumberFunction function = FunctionOf(node_, integer);
    if (inputs_.empty()) return Misfit();
    std::vector<int64_t> dims;
    CADRE_ASSIGN_OR_RETURN(auto all, Broadcast(&dims));
    std::vector<double> result = std::move(all[0]);
    if (all.size() == 1) {
      for (double& value : result) value = function(value, 0);
    }
    for (size_t n = 1; n < all.size(); ++n) {
      for (size_t i = 0; i < result.size(); ++i) result[i] = function(result[i], all[n][i]);
    }
    return NumbersOf(dims, std::move(result), integer);
  }

  // A dimension that an attribute or input states, counted from the end if negative.
  absl::StatusOr<int> Axis(int64_t axis, int64_t rank) const {
    if (axis < 0) axis += rank;
    if (axis < 0 || axis >= rank) return Misfit();
    return static_cast<int>(axis);
  }

  absl::StatusOr<Value> Gather() {
    if (!Has(2)) return Misfit();
    CADRE_ASSIGN_OR_RETURN(const int axis, Axis(attributes_.Integer("axis", 0), in(0).view.rank()));
    const std::vector<double> indices = NumbersIn(in(1));
    const int64_t extent = in(0).view.size(axis);
    std::vector<int64_t> sizes = in(0).view.sizes();
    std::vector<int64_t> dims(sizes.begin(), sizes.begin() + axis);
    const std::vector<int64_t> of_indices = in(1).view.sizes();
    dims.insert(dims.end(), of_indices.begin(), of_indices.end());
    dims.insert(dims.end(), sizes.begin() + axis + 1, sizes.end());
    if (!View::IsPossible(dims) || ProductOf(dims) > kMaxFoldedElements) return Misfit();
    const std::vector<double> from = NumbersIn(in(0));
    const int64_t inner = ProductOf({sizes.begin() + axis + 1, sizes.end()});
    const int64_t outer = ProductOf({sizes.begin(), sizes.begin() + axis});
    std::vector<double> result;
    result.reserve(ProductOf(dims));
    for (int64_t o = 0; o < outer; ++o) {
      for (const double index : indices) {
        const int64_t i = Whole(index) < 0 ? Whole(index) + extent : Whole(index);
        if (i < 0 || i >= extent) return Misfit();
        const auto begin = from.begin() + (o * extent + i) * inner;
        result.insert(result.end(), begin, begin + inner);
      }
    }
    return NumbersOf(dims, std::move(result), in(0).integer);
  }

  // Only of indices that select single elements, as exporters write for masks.
  absl::StatusOr<Value> GatherNd() {
    if (!Has(2) || attributes_.Integer("batch_dims", 0) != 0) return Misfit();
    const std::vector<int64_t> sizes = in(0).view.sizes();
    std::vector<int64_t> dims = in(1).view.sizes();
    if (dims.empty() || dims.back() != std::ssize(sizes) || sizes.empty()) return Misfit();
    dims.pop_back();
    const std::vector<double> from = NumbersIn(in(0)), indices = NumbersIn(in(1));
    std::vector<double> result;
    for (size_t at = 0; at < indices.size(); at += sizes.size()) {
      int64_t position = 0;
      for (size_t d = 0; d < sizes.size(); ++d) {
        int64_t i = Whole(indices[at + d]);
        if (i < 0) i += sizes[d];
        if (i < 0 || i >= sizes[d]) return Misfit();
        position = position * sizes[d] + i;
      }
      result.push_back(from[position]);
    }
    return NumbersOf(dims, std::move(result), in(0).integer);
  }

  absl::StatusOr<Value> GatherElements() {
    if (!Has(2) || in(0).view.rank() != in(1).view.rank()) return Misfit();
    CADRE_ASSIGN_OR_RETURN(const int axis, Axis(attributes_.Integer("axis", 0), in(0).view.rank()));
    const std::vector<int64_t> sizes = in(0).view.sizes(), dims = in(1).view.sizes();
    const std::vector<double> from = NumbersIn(in(0));
    std::vector<double> result = NumbersIn(in(1));
    for (int64_t n = 0; n < std::ssize(result); ++n) {
      int64_t rest = n, position = 0, step = 1;
      for (int d = static_cast<int>(std::ssize(dims)) - 1; d >= 0; --d) {
        int64_t i = rest % dims[d];
        rest /= dims[d];
        if (d == axis) i = Whole(result[n]) < 0 ? Whole(result[n]) + sizes[d] : Whole(result[n]);
        if (i < 0 || i >= sizes[d]) return Misfit();
        position += i * step;
        step *= sizes[d];
      }
      result[n] = from[position];
    }
    return NumbersOf(dims, std::move(result), in(0).integer);
  }

  absl::StatusOr<Value> Concat() {
    CADRE_ASSIGN_OR_RETURN(const int axis, Axis(attributes_.Integer("axis", 0), in(0).view.rank()));
    std::vector<int64_t> dims = in(0).view.sizes();
    dims[axis] = 0;
    std::vector<std::vector<double>> all;
    std::vector<int64_t> runs;
    for (const Value& value : inputs_) {
      std::vector<int64_t> sizes = value.view.sizes();
      if (sizes.size() != dims.size()) return Misfit();
      runs.push_back(ProductOf({sizes.begin() + axis, sizes.end()}));
      const int64_t added = std::exchange(sizes[axis], dims[axis]);
      if (sizes != dims) return Misfit();
      dims[axis] += added;
      all.push_back(NumbersIn(value));
    }
    if (!View::IsPossible(dims) || ProductOf(dims) > kMaxFoldedElements) return Misfit();
    std::vector<double> result;
    const int64_t outer = ProductOf({dims.begin(), dims.begin() + axis});
    for (int64_t o = 0; o < outer; ++o) {
      for (size_t i = 0; i < all.size(); ++i) {
        const auto begin = all[i].begin() + o * runs[i];
        result.insert(result.end(), begin, begin + runs[i]);
      }
    }
    return NumbersOf(dims, std::move(result), in(0).integer);
  }

  absl::StatusOr<Value> CumSum() {
    if (!Has(2) || in(1).view.elements() != 1 || attributes_.Integer("exclusive", 0) != 0 ||
        attributes_.Integer("reverse", 0) != 0) {
      return Misfit();
    }
    CADRE_ASSIGN_OR_RETURN(const int axis, Axis(Whole(NumbersIn(in(1))[0]), in(0).view.rank()));
    const std::vector<int64_t> dims = in(0).view.sizes();
    std::vector<double> result = NumbersIn(in(0));
    const int64_t step = ProductOf({dims.begin() + axis + 1, dims.end()});
    for (int64_t i = 0; i < std::ssize(result); ++i) {
      if (i / step % dims[axis] != 0) result[i] += result[i - step];
    }
    return NumbersOf(dims, std::move(result), in(0).integer);
  }

  absl::StatusOr<Value> Trilu() {
    const std::vector<int64_t> dims = in(0).view.sizes();
    if (dims.size() < 2 || (Has(2) && in(1).view.elements() != 1)) return Misfit();
    const int64_t k = Has(2) ? Whole(NumbersIn(in(1))[0]) : 0;
    const bool upper = attributes_.Integer("upper", 1) != 0;
    const int64_t columns = dims.back(), rows = dims[dims.size() - 2];
    std::vector<double> result = NumbersIn(in(0));
    for (int64_t i = 0; i < std::ssize(result); ++i) {
      const int64_t distance = i % columns - i / columns % rows;
      if (upper ? distance < k : distance > k) result[i] = 0;
    }
    return NumbersOf(dims, std::move(result), in(0).integer);
  }

  absl::StatusOr<Value> Cast() {
    bool integer = true, truth = false;
    if (node_.op_type() == "CastLike") {
      if (!Has(2)) return Misfit();
      integer = in(1).is_numbers() && in(1).integer;
    } else {
      const int64_t to = attributes_.Integer("to", 1);
      integer = to != 1 && to != 10 && to != 11 && to != 16;
      truth = to == 9;
    }
    std::vector<double> numbers = NumbersIn(in(0));
    for (double& number : numbers) {
      if (truth) number = Truth(number != 0);
      if (integer && !truth) number = IntegerOf(number, -0x1p62, 0x1p62);
    }
    return NumbersOf(in(0).view.sizes(), std::move(numbers), integer);
  }

  const onnx::Node& node_;
  const std::vector<Value>& inputs_;
  const Attributes attributes_;
};

double Divide(double a, double b) { return b == 0 ? 0 : std::trunc(a / b); }

// The activation that an operator of ONNX computes; null for other operators.
const ActivationFunction* ActivationNamed(const std::string& op) {
  const auto activations = Activations();
  const auto found = std::find_if(
      activations.begin(), activations.end(),
      [&](const auto& activation) { return activation.onnx != nullptr && activation.onnx == op; });
  return found == activations.end() ? nullptr : &*found;
}

NumberFunction FunctionOf(Activation activation) {
  return [value = Describe(activation).value](double a, double) { return value(a); };
}

}  // namespace

NumberFunction FunctionOf(const onnx::Node& node, bool integer) {
  using F = double (*)(double, double);
  static const auto& functions = *new std::map<std::string, F>{
      {"Add", [](double a, double b) { return a + b; }},
      {"Sum", [](double a, double b) { return a + b; }},
      {"Sub", [](double a, double b) { return a - b; }},
      {"Mul", [](double a, double b) { return a * b; }},
      {"Div", [](double a, double b) { return a / b; }},
      {"Pow", [](double a, double b) { return std::pow(a, b); }},
      {"Max", [](double a, double b) { return std::max(a, b); }},
      {"Min", [](double a, double b) { return std::min(a, b); }},
      {"Mod", [](double a, double b) { return b == 0 ? 0 : a - b * std::floor(a / b); }},
      {"Equal", [](double a, double b) { return Truth(a == b); }},
      {"Less", [](double a, double b) { return Truth(a < b); }},
      {"LessOrEqual", [](double a, double b) { return Truth(a <= b); }},
      {"Greater", [](double a, double b) { return Truth(a > b); }},
      {"GreaterOrEqual", [](double a, double b) { return Truth(a >= b); }},
      {"And", [](double a, double b) { return Truth(a != 0 && b != 0); }},
      {"Or", [](double a, double b) { return Truth(a != 0 || b != 0); }},
      {"Not", [](double a, double) { return Truth(a == 0); }},
      {"Neg", [](double a, double) { return -a; }},
      {"Abs", [](double a, double) { return std::abs(a); }},
      {"Sqrt", [](double a, double) { return std::sqrt(a); }},
      {"Exp", [](double a, double) { return std::exp(a); }},
      {"Log", [](double a, double) { return std::log(a); }},
      {"Erf", [](double a, double) { return std::erf(a); }},
      {"Floor", [](double a, double) { return std::floor(a); }},
      {"Ceil", [](double a, double) { return std::ceil(a); }},
      {"Reciprocal", [](double a, double) { return 1 / a; }},
      {"Softplus", [](double a, double) { return std::log1p(std::exp(a)); }},
  };
  const std::string& op = node.op_type();
  const Attributes attributes(node);
  if (op == "Gelu") {
    const bool approximate = attributes.Text("approximate", "none") == "tanh";
    return FunctionOf(approximate ? Activation::kApproximateGelu : Activation::kGelu);
  }
  if (op == "HardSigmoid") {
    const double alpha = attributes.Number("alpha", 0.2), beta = attributes.Number("beta", 0.5);
    return [=](double a, double) { return std::clamp(alpha * a + beta, 0.0, 1.0); };
  }
  if (op == "Div" && integer) return Divide;
  if (const auto found = functions.find(op); found != functions.end()) return found->second;
  const ActivationFunction* activation = ActivationNamed(op);
  return activation == nullptr ? NumberFunction() : FunctionOf(activation->activation);
}

size_t OperandsOf(const std::string& op) {
  static const auto& unary =
      *new std::set<std::string>{"Abs", "Ceil", "Erf", "Exp",        "Floor",    "HardSigmoid",
                                 "Log", "Neg",  "Not", "Reciprocal", "Softplus", "Sqrt"};
  if (unary.count(op) > 0 || ActivationNamed(op) != nullptr) return 1;
  onnx::Node node;
  node.set_op_type(op);
  return FunctionOf(node, false) ? 2 : 0;
}

bool IsVariadic(const std::string& op) { return op == "Sum" || op == "Max" || op == "Min"; }

bool IsFolded(const onnx::Node& node) { return Folder::FunctionFor(node) != nullptr; }

absl::StatusOr<Value> Fold(const onnx::Node& node, const std::vector<Value>& inputs) {
  return (Folder(node, inputs).*Folder::FunctionFor(node))();
}

Value NumbersOf(const std::vector<int64_t>& dims, std::vector<double> numbers, bool integer) {
  return {.kind = Value::Kind::kNumbers,
          .view = View(dims),
          .numbers = std::make_shared<const std::vector<double>>(std::move(numbers)),
          .integer = integer};
}

std::vector<double> NumbersIn(const Value& value) {
  std::vector<double> numbers;
  for (const int64_t position : value.view.Positions()) {
    numbers.push_back((*value.numbers)[position]);
  }
  return numbers;
}

}  // namespace cadre
