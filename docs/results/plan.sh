#!/bin/sh
# The runs of docs/results, in the order in which they are made. Every command adds what its table does not
# hold yet, so that the plan can be stopped at any time and started again:
#
#     DATA=FOLDER BACKBONE=FOLDER/vit_tiny_patch16_224 sh docs/results/plan.sh [--dry-run | --jobs N ...]
#
# DATA holds cifar100, tiny-imagenet and pacs. The tables in cpu/ come from the commits that their rows name, when
# scale=cpu was a twentieth of the images; it has changed since, so that the same commands make other runs, and
# write them to tables of their own (TABLES, docs/results/miniature unless given). Start it from a clone at a named commit, not from a tree
# that is being edited: each row says from which commit it comes.
set -u
here=$(cd "$(dirname "$0")" && pwd)
export OMP_NUM_THREADS=1 PYTHONPATH="$here/../../benchmarks${PYTHONPATH:+:$PYTHONPATH}"
failed=0

# runs TABLE DATASET RECIPE [SETTINGS AND OPTIONS OF fedcue compare]...
runs() {
    table=$1 dataset=$2
    shift 2
    fedcue compare "$@" scale=cpu heldout=0.1 precision=bfloat16 workers=1 evaluation.prototype_sample=0 \
        evaluation.cls_sample=0 "data.root=$DATA/$dataset" "backbone=$BACKBONE" \
        --table "${TABLES:-$here/miniature}/$table.csv" $options || failed=1
}
options=$*

# All images of CIFAR-100, 10 classes a client, and the paper's number of steps in a visit
all_images="data.train_per_class=500 data.test_per_class=100 training.batch_size=10"
all_images_rates="training.head_lr=0.005 training.prompt_lr=0.1"
runs cifar100-all-images cifar100 cifar100-pathological $all_images $all_images_rates --methods pep,fedvpt --seeds 0
runs cifar100-all-images cifar100 cifar100-pathological $all_images $all_images_rates rounds=50 --methods none --seeds 0 \
    --variant "pep: method.prior=uniform"
runs cifar100-all-images cifar100 cifar100-pathological $all_images rounds=25 --methods cue --seeds 0 \
    --variant "cue: evaluation.priors=uniform"
runs cifar100-all-images cifar100 cifar100-pathological $all_images --methods ncm --seeds 0 \
    --variant "ncm: method.whiten=true"

# What cue could be made of: 25 rounds, as many validation as training images; all but one with the prior in
# the loss, which was then left out of it
half="evaluation.on=validation evaluation.validation_share=0.5"
trials="rounds=25 evaluation.every=0 $half method.logit_prior=train+test training.head_lr=0.0005 training.prompt_lr=1.5"
runs cue-variants cifar100 cifar100-pathological $trials data.train_per_class=50 --methods cue --seeds 0 \
    --variant "cue: training.prompt_lr=5" \
    --variant "cue: training.prompt_lr=0.5" \
    --variant "cue: training.head_lr=0.005" \
    --variant "cue: method.logit_prior=test" \
    --variant "cue: method.whiten=false" \
    --variant "cue: method.head_init=random training.head_lr=0.02" \
    --variant "cue: method.blocks=1" \
    --variant "cue: method.prompts=4"
runs cue-variants cifar100 cifar100-pathological $trials data.train_per_class=50 --seeds 0 \
    --methods cue_variants:Mixed,cue_variants:MixedByLayer,cue_variants:Momentum,cue_variants:Scaled \
    --variant "cue_variants:Tied: training.head_lr=0"
runs cue-variants cifar100 cifar100-pathological $half data.train_per_class=50 --methods none --seeds 0 \
    --variant "ncm: method.whiten=true"
runs cue-variants-pacs pacs pacs $trials data.train_per_class=100 --methods cue,cue_variants:Mixed --seeds 0 \
    --variant "cue: training.prompt_lr=5" \
    --variant "cue: training.prompt_lr=0.5" \
    --variant "cue: training.head_lr=0.005" \
    --variant "cue: method.logit_prior=test" \
    --variant "cue: method.whiten=false" \
    --variant "cue: method.head_init=random training.head_lr=0.02"
runs cue-variants-pacs pacs pacs $half data.train_per_class=100 --methods none --seeds 0 \
    --variant "ncm: method.whiten=true"

# How fast cue's prompts may learn, at full length
runs cue-rates cifar100 cifar100-pathological $half data.train_per_class=50 --methods none --seeds 0 \
    --variant "cue: training.prompt_lr=0.5" --variant "cue: training.prompt_lr=1.5" --variant "cue: training.prompt_lr=5"
runs cue-rates-pacs pacs pacs $half data.train_per_class=100 --methods none --seeds 0 \
    --variant "cue: training.prompt_lr=0.5" --variant "cue: training.prompt_lr=1.5" --variant "cue: training.prompt_lr=5"

# CIFAR-100, 10 classes a client; PEP-FedPT with noise, without prototypes, without priors, with five epochs
epochs="training.epochs=5 training.head_lr=0.005 training.prompt_lr=0.5"
runs cifar100-pathological cifar100 cifar100-pathological --methods pep,cue,fedvpt,fedvpt_deep,ncm --seeds 0 \
    --variant "pep: evaluation.priors=em" \
    --variant "pep: evaluation.priors=uniform" \
    --variant "cue: evaluation.priors=em" \
    --variant "cue: evaluation.priors=uniform" \
    --variant "ncm: method.whiten=true" \
    --variant "pep: privacy=paper" \
    --variant "pep: method.temperature=100" \
    --variant "pep: privacy=dp" \
    --variant "pep: method.prior=uniform" \
    --variant "pep: $epochs" \
    --variant "fedvpt: $epochs"

# A smaller task with more images of each class at a client: where PEP-FedPT is ahead, and what of it makes it so
thirty='["apple","aquarium_fish","baby","bear","beaver","bed","bee","beetle","bicycle","bottle","bowl","boy","bridge","bus","butterfly","camel","can","castle","caterpillar","cattle","chair","chimpanzee","clock","cloud","cockroach","couch","crab","crocodile","cup","dinosaur"]'
runs cifar100-30-classes cifar100 cifar100-pathological partition.clients=30 partition.classes_per_client=5 \
    data.train_per_class=60 rounds=40 evaluation.every=10 training.epochs=3 training.batch_size=10 \
    training.head_lr=0.005 training.prompt_lr=0.5 "data.classes=$thirty" --methods pep,fedvpt --seeds 0 \
    --variant "pep: method.prior=uniform" \
    --variant "pep: method.layers=[0,1,2]" \
    --variant "pep: method.layers=[7,8,9]" \
    --variant "pep: method.temperature=100" \
    --variant "pep: privacy=paper" \
    --variant "pep: method.prompts=5" \
    --variant "pep: method.ccmp_mode=accumulate" \
    --variant "pep: method.score_source=bare" \
    --variant "pep: method.momentum=0"

# The other splits, the other methods, more seeds
for split in pacs:pacs cifar100-dirichlet:cifar100 tinyimagenet-pathological:tiny-imagenet; do
    runs "${split%:*}" "${split#*:}" "${split%:*}" --methods cue,pep,fedvpt,fedvpt_deep,ncm --seeds 0 \
        --variant "cue: evaluation.priors=uniform" --variant "ncm: method.whiten=true"
done
for split in cifar100-dirichlet:cifar100 tinyimagenet-pathological:tiny-imagenet; do
    runs "${split%:*}" "${split#*:}" "${split%:*}" --methods none --seeds 0 --variant "pep: privacy=paper"
done
runs tinyimagenet-dirichlet tiny-imagenet tinyimagenet-dirichlet --methods pep --seeds 0 --variant "pep: privacy=paper"
for split in cifar100-pathological:cifar100 pacs:pacs cifar100-dirichlet:cifar100 tinyimagenet-pathological:tiny-imagenet; do
    runs "${split%:*}" "${split#*:}" "${split%:*}" --methods pfedpg,head,ppt,fedpr,sgpt --seeds 0
done
for split in cifar100-pathological:cifar100 pacs:pacs cifar100-dirichlet:cifar100 tinyimagenet-pathological:tiny-imagenet; do
    runs "${split%:*}" "${split#*:}" "${split%:*}" --methods cue,pep,fedvpt,fedvpt_deep,ncm --seeds 1,2 \
        --variant "cue: evaluation.priors=uniform" --variant "ncm: method.whiten=true"
done
runs pacs pacs pacs --methods sgpt --seeds 1,2

# Without any skew
runs cifar100-iid cifar100 cifar100-iid --methods cue,pep,fedvpt,ncm --seeds 0 \
    --variant "cue: evaluation.priors=uniform" --variant "ncm: method.whiten=true"

exit $failed
