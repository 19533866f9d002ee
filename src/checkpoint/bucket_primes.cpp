#include "penstock/checkpoint/bucket_primes.hpp"

namespace penstock {
namespace {

std::uint64_t multiply_modulo(std::uint64_t a, std::uint64_t b, std::uint64_t modulus) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>(static_cast<Wide>(a) * b % modulus);
}

bool passes_miller_rabin(std::uint64_t n, std::uint64_t base) {
  std::uint64_t exponent = n - 1;
  int twos = 0;
  for (; exponent % 2 == 0; exponent /= 2) ++twos;
  std::uint64_t power = 1;
  for (std::uint64_t square = base % n; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) power = multiply_modulo(power, square, n);
    square = multiply_modulo(square, square, n);
  }
  if (power == 1 || power == n - 1) return true;
  for (int i = 1; i < twos; ++i) {
    power = multiply_modulo(power, power, n);
    if (power == n - 1) return true;
  }
  return false;
}

/// The primality test of the models: exact below 2^32 but for 61, which it takes for composite since
/// 61 is one of its bases. Tables are laid out by this test, so it is kept as it is.
bool is_bucket_prime(std::int64_t n) {
  if (n < 2) return false;
  for (const std::int64_t small : {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37}) {
    if (n % small == 0) return n == small;
  }
  const auto number = static_cast<std::uint64_t>(n);
  return passes_miller_rabin(number, 2) && passes_miller_rabin(number, 7) &&
         passes_miller_rabin(number, 61);
}

}  // namespace

std::vector<std::vector<std::int64_t>> bucket_primes(const EngramConfig& config) {
  // Each order starts again at vocab_size and skips what is taken, so the run only ever continues.
  std::int64_t last = config.vocab_size - 1;
  std::vector<std::vector<std::int64_t>> primes(config.layer_ids.size());
  for (auto& layer : primes) {
    for (int column = 0; column < config.num_columns(); ++column) {
      do ++last;
      while (!is_bucket_prime(last));
      layer.push_back(last);
    }
  }
  return primes;
}

}  // namespace penstock
