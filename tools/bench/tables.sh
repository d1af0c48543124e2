# shellcheck shell=bash
# Sourced by tools/bench/gpu: turns the programs' lines "key: values" into Markdown tables.
#
# Variables of gpu that it reads: work, title, sequences, steps, rounds, warm_up, ceilings, uncompiled_reason, programs; by
# program: names, sizes_of (micro-batch), ms (per step, by round), problems (why it did not run). Files: $work/PROGRAM (its
# last output) and $work/tried.
# shellcheck disable=SC2154  # assigned in gpu

# values KEY [FILE]: prints the values of the line "KEY: ...".
values() { sed -n "s/^$1: *//p" "${2:-$work/out}"; }
# calculate EXPRESSION [FORMAT]: by awk.
calculate() { awk "BEGIN { printf \"${2:-%.17g}\", ($1) }"; }
# spread FORMAT "VALUES": "median (min – max)".
spread() {
  tr -s ' ' '\n' <<<"$2" | grep . | sort -g | awk -v f="$1" '
    { v[NR] = $1 }
    END { m = int((NR + 1) / 2); printf f " (" f " – " f ")", NR % 2 ? v[m] : (v[m] + v[m + 1]) / 2, v[1], v[NR] }'
}
median() { spread %.17g "$1" | cut -d ' ' -f 1; }
tera() { awk -v a="$1" 'BEGIN { n = split(a, x, " "); for (i = 1; i <= n; i++) printf "%.6g ", x[i] / 1e12 }'; }
# quotients "VALUES" "VALUES": divides the first list by the second, element by element.
quotients() { awk -v a="$1" -v b="$2" 'BEGIN { n = split(a, x, " "); split(b, y, " "); for (i = 1; i <= n; i++) printf "%.6g ", x[i] / y[i] }'; }
# largest_difference FILE FILE: prints the largest difference of the first steps' losses.
largest_difference() {
  { values losses "$1" && values losses "$2"; } | cut -d ' ' -f "1-$warm_up" | awk '
    NR == 1 { n = split($0, a, " ") }
    NR == 2 { for (i = 1; i <= n && i <= NF; i++) { d = a[i] - $i; if (d < 0) d = -d; if (d > m) m = d } }
    END { printf "%.5f", m }'
}
gib() { calculate "$1 / 2^30" %.2f; }

# Prints the lines "products_KIND: size FLOP/s share ..." of step --products in $work/out, by size.
print_products() {
  printf '\n## Products of square matrices\n\nTFLOP/s, and per cent of the peak (of a GPU by its data sheet); the second operand is transposed; e4m3: codes of 8 bits, scaled.\n\n'
  awk '
    /^products_/ {
      kind = $1; sub(/^products_/, "", kind); sub(/:$/, "", kind); kinds[++k] = kind
      for (i = 2; i < NF; i += 3) {
        if (!($i in known)) { known[$i] = 1; sizes[++n] = $i }
        rate[kind, $i] = $(i + 1); share[kind, $i] = $(i + 2)
      }
    }
    END {
      head = "| size |"; rule = "|---|"
      for (j = 1; j <= k; j++) { head = head " " kinds[j] ", TFLOP/s | % of peak |"; rule = rule "---|---|" }
      if (k == 2) { head = head " " kinds[2] " / " kinds[1] " |"; rule = rule "---|" }
      print head; print rule
      for (i = 1; i <= n; i++) {
        row = "| " sizes[i] " |"
        for (j = 1; j <= k; j++) {
          at = kinds[j] SUBSEP sizes[i]
          row = row (at in rate ? sprintf(" %.2f |", rate[at] / 1e12) : " |") \
                    (at in rate && share[at] > 0 ? sprintf(" %.1f |", 100 * share[at]) : " |")
        }
        if (k == 2) {
          a = kinds[1] SUBSEP sizes[i]; b = kinds[2] SUBSEP sizes[i]
          row = row (a in rate && b in rate ? sprintf(" %.2f |", rate[b] / rate[a]) : " |")
        }
        print row
      }
    }' "$work/out"
}

# Prints everything about a model.
print_model() {
  local program flops='' tokens peak sheet seconds
  printf '\n## %s\n\n' "$title"
  if [[ -f "$work/mantissa" ]]; then
    flops=$(values flops_per_step "$work/mantissa") sheet=$(values datasheet_flops "$work/mantissa")
    tokens=$(values tokens_per_step "$work/mantissa")
    peak=$(median "$ceilings")
    printf '%d sequences, %.0f tokens, %.1f GFLOP a step; GEMM peak %s TFLOP/s' "$sequences" "$tokens" \
      "$(calculate "$flops / 1e9")" "$(spread %.2f "$(tera "$ceilings")")"
    if [[ $(calculate "$sheet > 0") == 1 ]]; then printf ', data sheet %.1f' "$(calculate "$sheet / 1e12")"; fi
    printf '; medians (min – max) over %d rounds of %d steps.\n\n' "$rounds" "$steps"
  fi
  echo '| program | micro-batch | ms a step | tokens/s | MFU of GEMM peak, % | MFU of data sheet, % | memory, GiB |'
  echo '|---|---|---|---|---|---|---|'
  for program in "${programs[@]}"; do
    if [[ -n "${problems[$program]:-}" ]]; then
      printf '| %s | %s | not run: %s | | | | |\n' "${names[$program]}" "${sizes_of[$program]:-}" "${problems[$program]//|//}"
      continue
    fi
    seconds=$(calculate "$(median "${ms[$program]}") / 1000")
    printf '| %s | %s | %s | %.0f | %s | %s | %s |\n' "${names[$program]}" "${sizes_of[$program]}" \
      "$(spread %.2f "${ms[$program]}")" "$(calculate "$(values tokens_per_step "$work/$program") / $seconds")" \
      "$([[ -z "$flops" ]] || calculate "100 * $flops / $seconds / $peak" %.1f)" \
      "$([[ -z "$flops" || $(calculate "$sheet > 0") == 0 ]] || calculate "100 * $flops / $seconds / $sheet" %.1f)" \
      "$(gib "$(values memory_bytes "$work/$program")")"
  done
  echo
  for program in "${programs[@]}"; do
    [[ $program != torch && -z "${problems[$program]}${problems[torch]}" ]] || continue
    printf '%s / %s in tokens/s, round by round: %s\n\n' "${names[$program]}" "${names[torch]}" \
      "$(spread %.3f "$(quotients "${ms[torch]}" "${ms[$program]}")")"
  done
  echo '| ms a step | data | forward | backward | reduce | decide | update |'
  echo '|---|---|---|---|---|---|---|'
  for program in "${programs[@]}"; do
    [[ -f "$work/$program" && -n $(values phase_ms "$work/$program") ]] || continue
    values phase_ms "$work/$program" | awk -v name="${names[$program]}" '{
      for (i = 1; i < NF; i += 2) ms[$i] = sprintf("%.2f", $(i + 1))
      print "| " name " | " ms["data"] " | " ms["forward"] " | " ms["backward"] " | " ms["reduce"] " | " ms["decide"] " | " ms["update"] " |"
    }'
  done
  printf '\nPhases: by events on the stream, in further steps. decide: norm and finiteness, clipping; reduce: what the backward pass does not hide.\n'
  printf 'Memory: the most that was taken from the GPU at once, without its context (on a CPU, the process).\n\n'
  for program in "${programs[@]}"; do
    [[ -f "$work/$program" ]] || continue
    printf -- '- %s, losses of the first %d steps: %s\n' "${names[$program]}" "$warm_up" \
      "$(values losses "$work/$program" | cut -d ' ' -f "1-$warm_up")"
  done
  if [[ -f "$work/torch" && -f "$work/mantissa" ]]; then
    printf -- '- the largest difference between mantissa and PyTorch: %s nats\n' "$(largest_difference "$work/mantissa" "$work/torch")"
  fi
  if [[ -n "$uncompiled_reason" ]]; then printf -- '- not compiled, because torch.compile failed: %s\n' "$uncompiled_reason"; fi
  printf -- '- micro-batches tried: %s\n' "$(awk '
    { what = $0; sub(/^[^ ]+ [^ ]+ /, "", what); text = text (NR > 1 ? "; " : "") $1 " " $2 ": " what }
    END { print text }' "$work/tried")"
}
