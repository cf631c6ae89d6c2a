"""The plots of the demo stories, as data for `stories.py`.

A plot is a list of beats, each a template (see `grammar.py`) over the slots of a cast: hero, friend, adult, adult2, pet,
place, place2, out, out2 (outdoors), work (where the adult works), thing, thing2, food, food2, season, number. A beat that
starts with "?" is told half of the time; "¶" starts a paragraph. What must stay true through a story is in its slots, so
each story is coherent. `questions` are pairs that the chat data asks about the story; `summary` sums it up.
"""

# ruff: noqa: E501 - tables of words and templates read best one entry a line
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plot:
    name: str
    beats: tuple[str, ...]
    summary: str
    questions: tuple[tuple[str, str], ...]


RULES: dict[str, tuple[str, ...]] = {
    "said": ("said", "said", "answered", "replied"),
    "happy": ("happy", "glad", "pleased", "full of joy", "very happy"),
    "sad": ("sad", "unhappy", "worried", "close to tears", "very sad"),
    "smiled": ("smiled", "laughed", "nodded and smiled", "grinned", "beamed"),
    "thanks": (
        '"Thank you[ so much|, {adult}| very much|]!" said {hero}.',
        "{hero} thanked {adult} [with all {hero.his} heart|again and again|and smiled].",
        '"You are [so kind|the best], {adult}," said {hero}.',
    ),
    "nature": (
        "[The birds were singing|A bee was humming|The wind was soft|The sun was warm] [and the sky was blue|in the trees|all around].",
        "[Small white clouds|A flock of geese|Two butterflies] [drifted|moved] slowly [over the hill|over the village|across the sky].",
        "The {season} air [was fresh|smelled sweet|was clear and cool].",
        "[It was a quiet day|It was a busy day|Nobody was in a hurry] in Alderbrook.",
    ),
    "way": (
        'On the way, {hero} [met|saw|passed] {adult2} the {adult2.kind}, who was {adult2.busy}. "Good [morning|day], {hero}!"'
        " [called|said] {adult2}. {hero} waved [back|and walked on].",
        "{hero} walked [past the well|along the narrow lane|over the old bridge|between the green hedges] and [hummed a tune|looked"
        " all around|did not stop once|thought about the day].",
        "{hero} [stopped for a moment|rested on a stone] and ate [a piece of bread|an apple|a small cake]. <nature>",
        "<nature>",
    ),
    "night": (
        "That night, {hero} [slept very well|dreamed of the day|looked at the stars and smiled].",
        "When the moon came up, {hero} was [fast asleep|already in bed|asleep and dreaming].",
        "That evening, {hero} told [the whole story|everything] to {hero.his} [mother|father|grandmother|family].",
    ),
    "end": (
        "<night>",
        "It was the best day of the whole {season}.",
        "And from that day on, {hero} and {friend} were [the best of friends|always kind to each other].",
        "{hero} never forgot that day.",
        "Everyone in Alderbrook [talked|spoke] about it for a long time.",
        "The end.",
        "And so the day ended well for everyone.",
    ),
    "hello": (
        '"Hello, {hero}," said {adult}. "[What is the matter|Why do you look so worried|What happened|Can I help you]?"',
        '{adult} [looked up|put down {adult.his} tools|stopped working]. "What is wrong, {hero}?" {adult.he} asked.',
    ),
}

LOST = Plot(
    "lost",
    (
        "{hero} had {thing.a}. [It was {hero.his} favourite thing in the world|{friend} had given it to {hero.him}|It was a gift from {hero.his} grandmother].",
        "?{hero} took {thing.short} everywhere[, even to bed| and never left it at home|].",
        "[One day|Then, one afternoon|But one morning], {thing.short} was gone.",
        "{hero} [looked under the bed|looked behind the door|searched the whole house], but {thing.short} was not there. {hero.He} was <sad>.",
        "¶",
        "First, {hero} [went|ran|walked] {place.to}. {hero.He} [looked|searched] everywhere, but {thing.short} was not {place.at}.",
        "?<way>",
        "Then {hero} [asked|went to] {adult} the {adult.kind}. <hello>",
        '"I [lost|cannot find] my {thing.full}," <said> {hero}. "[Have you seen it|Do you know where it is]?"',
        '"[I saw something {thing.adjective}|I think I saw it|I saw a {thing}] {out.at}," said {adult}. <thanks>',
        "¶",
        "{hero} [hurried|ran] {out.to}[ as fast as {hero.he} could|]. <nature>",
        "There, [in the tall grass|behind a big stone|next to a fallen branch], [lay|was] {thing.the}! {pet} the {pet.kind} was [sitting beside it|sleeping next to it|watching over it].",
        '"[You found it|You kept it safe], {pet}!" [cried|said|laughed] {hero}. {hero.He} was <happy>.',
        "{hero} [hugged|held] {thing.short} [tightly|close] and [went|walked|ran] home.",
        "<end>",
    ),
    "{hero} lost {thing.a}, looked for it and found it {out.at}.",
    (
        ("What did {hero} lose?", "{hero} lost {thing.a}."),
        ("Where did {hero} find the {thing}?", "{hero} found the {thing} {out.at}."),
        ("Who told {hero} where the {thing} was?", "{adult} the {adult.kind} told {hero} where it was."),
        ("Where did {hero} look first?", "First, {hero} went {place.to}."),
        ("Which animal was with the {thing}?", "{pet} the {pet.kind} was with it."),
    ),
)

STUCK = Plot(
    "stuck",
    (
        "{hero} and {friend} were [playing|walking|picking flowers] {out.at}. <nature>",
        "Suddenly, they heard a [small|sad|strange] sound. It was {pet} the {pet.kind}.",
        "{pet} was stuck [in a deep hole|under a fallen branch|between two big stones|in a thorny bush] and could not get out.",
        '"[Oh no|Oh dear|Poor {pet}]!" [cried|said] {friend}. "What [can|should] we do?"',
        "[{hero} tried to pull {pet} out|{hero} reached out a hand], but {hero.he} was not strong enough.",
        "?{friend} tried too, but it did not [work|help].",
        "¶",
        '"[Stay here with {pet}|Wait here]," <said> {hero}. "I will [get|find|fetch] help."',
        "{hero} ran {work.to} and found {adult} the {adult.kind}, who was {adult.busy}. <hello>",
        '"{pet} is stuck {out.at}!" <said> {hero}. "[Please come|Please help us|Come quickly]!"',
        "{adult} took [a long rope|a strong stick|a spade|an old blanket] and [followed|went with] {hero}.",
        "¶",
        "Together they [pulled and pulled|worked slowly and carefully|counted to three and pulled], and at last {pet} was free.",
        "{pet} [jumped around them|rested {pet.his} head on {hero}'s knee|looked at them with thankful eyes]. Everyone <smiled>.",
        '"[Well done|Good work], {hero}," said {adult}. "You [asked for help at the right time|stayed calm|did the right thing]."',
        "<end>",
    ),
    "{pet} the {pet.kind} was stuck {out.at}, and {hero}, {friend} and {adult} set {pet.him} free.",
    (
        ("Which animal was stuck?", "{pet} the {pet.kind} was stuck."),
        ("Who helped {hero} and {friend}?", "{adult} the {adult.kind} helped them."),
        ("Who stayed with {pet}?", "{friend} stayed with {pet}."),
        ("Where was {pet}?", "{pet} was {out.at}."),
    ),
)

SHARE = Plot(
    "share",
    (
        "{hero} had {food} for lunch. {hero.He} [sat down|found a nice spot] {out.at} to eat.",
        "<nature>",
        "Then {friend} came along. {friend} looked <sad>.",
        '"[What is wrong|Why are you sad|What happened], {friend}?" asked {hero}.',
        '"I [forgot|lost] my lunch, and I am [so|very] hungry," <said> {friend}.',
        "¶",
        "{hero} [thought for a moment|looked at {food}|did not think long]. There was [enough for two|plenty].",
        '"[You can have half of mine|Let us share|Sit with me], {friend}," said {hero}.',
        "They [shared|ate] {food} [together|side by side] and [talked about school|told jokes|watched the clouds].",
        "?Even {pet} the {pet.kind} [came by and got a crumb|got a little bit].",
        "¶",
        'The next day, {friend} [brought|came with] {food2}. "[This is for you|Today I want to share with you|Now it is my turn], {hero}," said {friend}.',
        "{hero} was <happy>. [Food tastes best when you share it|Sharing had made two people happy|A kind deed often comes back].",
        "<end>",
    ),
    "{hero} shared {food} with {friend}, and the next day {friend} brought {food2}.",
    (
        ("What did {hero} have for lunch?", "{hero} had {food}."),
        ("Who was hungry?", "{friend} was hungry."),
        ("What did {friend} bring the next day?", "{friend} brought {food2}."),
        ("Where did they eat?", "They ate {out.at}."),
    ),
)

STORM = Plot(
    "storm",
    (
        "[Dark clouds came over the hill|The sky turned grey|A strong wind began to blow]. {hero} was {out.at} with {pet} the {pet.kind}.",
        '"[A storm is coming|It is going to rain]," said {hero}. "We must [find a dry place|go home|hurry], {pet}."',
        "[Soon|A moment later], the rain [fell hard|came down in big drops]. [Thunder rolled|Lightning flashed] [over the village|above the trees].",
        "{pet} was [afraid|scared|shaking]. {hero} [held {pet.him} close|covered {pet.him} with {hero.his} coat|spoke softly to {pet.him}].",
        "¶",
        'They ran {work.to}. {adult} the {adult.kind} opened the door. "Come in, [quickly|both of you|you two]!" said {adult}.',
        "Inside it was [warm|dry and warm|bright and warm]. {adult} gave {hero} [a cup of hot milk|a dry blanket|a bowl of soup] and gave {pet} [a soft place to rest|some water|a warm corner].",
        '?"[Are you not afraid of storms|Do you like storms], {adult}?" asked {hero}. "[A storm is only noise and water|Every storm ends]," <said> {adult}.',
        "They [listened to the rain|played a game|told stories] until the storm was over.",
        "¶",
        "[At last|After an hour], the sun came out, and there was a [bright|beautiful|big] rainbow over {place.the}.",
        "<thanks> Then {hero} and {pet} [walked|ran] home [through the puddles|under the rainbow].",
        "<end>",
    ),
    "{hero} and {pet} were caught in a storm, and {adult} let them stay {work.at}.",
    (
        ("Who was with {hero} in the storm?", "{pet} the {pet.kind} was with {hero}."),
        ("Where did they hide from the rain?", "They stayed {work.at} with {adult}."),
        ("What did they see after the storm?", "They saw a rainbow over {place.the}."),
        ("Who opened the door?", "{adult} the {adult.kind} opened the door."),
    ),
)

GIFT = Plot(
    "gift",
    (
        "[It was|Tomorrow was|The next day was] {friend}'s birthday, and {hero} wanted to [give|make] {friend.him} a [special|nice] present.",
        "[But {hero} had no money|{hero} had only one coin|{hero} did not know what to choose]. {hero.He} went {work.to} to ask {adult} the {adult.kind}.",
        "<hello>",
        '"I [need|am looking for] a present for {friend}," <said> {hero}.',
        '"[Help me with my work today|If you help me a little], and I will [help you make|give you] {thing.a}," said {adult}.',
        "¶",
        "So {hero} [worked all morning|swept the floor and carried water|helped {adult} for two hours]. It was [hard|long] work, but {hero} did not [stop|complain|give up].",
        "In the end, {adult} [kept {adult.his} word|was very pleased]. {hero} [got|received] {thing.the} and [wrapped it in paper|tied a ribbon around it|put it in a little bag].",
        "¶",
        "The party was {out.at}. There was {food}, and everyone sang for {friend}.",
        '{friend} opened the present. "[What a lovely {thing}|A {thing.full}]! [It is just what I wanted|I love it]," said {friend}.',
        "?{pet} the {pet.kind} [came to the party too|ran around the table].",
        "{hero} was <happy>, because [{hero.he} had earned the present|it is good to give|{friend} was happy too].",
        "<end>",
    ),
    "{hero} worked for {adult} to earn {thing.a} as a birthday present for {friend}.",
    (
        ("Whose birthday was it?", "It was {friend}'s birthday."),
        ("What was the present?", "The present was {thing.a}."),
        ("Who did {hero} work for?", "{hero} worked for {adult} the {adult.kind}."),
        ("Where was the party?", "The party was {out.at}."),
    ),
)

SEED = Plot(
    "seed",
    (
        '[In spring|One spring day], {adult} the {adult.kind} gave {hero} a [tiny|small] seed. "[Plant it and wait|Give it water and time]," said {adult}.',
        "{hero} planted the seed {out.at}. {hero.He} [gave it water every day|watered it each morning].",
        "[After one week|For many days], nothing [happened|could be seen]. {hero} was <sad>.",
        '"[Maybe the seed is asleep|Maybe it needs more time]," said {friend}. "[You must be patient|Let us wait a little longer]."',
        "¶",
        "?One night it was cold, so {hero} covered the ground with [leaves|straw|an old blanket].",
        "?{pet} the {pet.kind} [sat near the seed|watched the ground every day|came to look too].",
        'Then, one [sunny|bright|warm] morning, {hero} saw [a tiny green leaf|a small green shoot]. "[It is growing|Look, {friend}]!" [cried|called] {hero}.',
        "The plant grew and grew. [In summer|By summer], it was [as tall as {hero}|taller than the fence] and had {number} [yellow|red|white|purple] flowers.",
        "¶",
        "{hero} gave one flower to {friend} and one to {adult}.",
        '"[Good things take time|You took good care of it]," said {adult}. {hero} <smiled>.',
        "<end>",
    ),
    "{hero} planted a seed from {adult} {out.at} and waited until it became a plant with {number} flowers.",
    (
        ("Who gave {hero} the seed?", "{adult} the {adult.kind} gave {hero} the seed."),
        ("Where did {hero} plant the seed?", "{hero} planted the seed {out.at}."),
        ("How many flowers did the plant have?", "The plant had {number} flowers."),
        ("Who told {hero} to be patient?", "{friend} told {hero} to be patient."),
    ),
)

QUARREL = Plot(
    "quarrel",
    (
        "{hero} and {friend} were good friends. [Every day|After school], they played together {out.at}.",
        "One day, {friend} [borrowed|played with] {hero}'s {thing.full} and [dropped it|broke it by accident].",
        '"[You broke my {thing}|Look what you did]!" [shouted|cried] {hero}. {hero.He} was [very angry|angry].',
        "{friend} [ran away|went home without a word]. Now {hero} was alone, and {friend} was <sad>.",
        "¶",
        "{hero} [sat down|walked around] {place.at}. {adult} the {adult.kind} [came by|saw {hero.him}]. <hello>",
        '{hero} told {adult} about the {thing}. "[A {thing} can be mended|Things can be mended], and [so can a friendship|a friend is worth more than a {thing}]," said {adult}.',
        "{hero} [thought about it|was quiet for a while|knew that {adult} was right].",
        "¶",
        'So {hero} went to {friend}\'s house. "I am sorry [that I shouted|that I was angry]," said {hero}.',
        '"And I am sorry about {thing.short}," <said> {friend}. "[Shall we mend it together?|Let us mend it.]"',
        "They [used a little glue|worked all afternoon|asked {adult} for some glue], and soon {thing.short} was [as good as new|whole again].",
        "?Then they [played until dark|ran outside to play|shared {food}].",
        "<end>",
    ),
    "{hero} was angry because {friend} broke {hero.his} {thing}, but they said sorry and mended it together.",
    (
        ("What did {friend} break?", "{friend} broke {hero}'s {thing.full}."),
        ("Who gave {hero} good advice?", "{adult} the {adult.kind} gave {hero} good advice."),
        ("Why was {hero} angry?", "{hero} was angry because {friend} broke the {thing}."),
        ("What did they do in the end?", "They said sorry and mended the {thing} together."),
    ),
)

TRADE = Plot(
    "trade",
    (
        "{hero} wanted {thing2.a}, but {hero.he} had only {thing.a}.",
        "{hero} went {place.to} and met {friend}. {friend} had {food}.",
        '"I like your {thing}," said {friend}. "[Will you trade|Do you want to trade] it for {food}?"',
        "{hero} [agreed|nodded]. Now {friend} had {thing.the}, and {hero} had {food}.",
        "¶",
        "?<way>",
        "Next, {hero} walked {work.to}. {adult} the {adult.kind} was {adult.busy}. {adult.He} looked [tired and hungry|very hungry].",
        '"[That looks good|I have not eaten all day]," said {adult}. "[I will give you {thing2.a} for it.|Would you take {thing2.a} for it?]"',
        '"[Yes, gladly|Of course|With pleasure]!" said {hero}. {hero.He} gave {adult} {food} and took {thing2.the}.',
        "¶",
        "So {friend} was happy with {thing.short}, {adult} was happy with the food, and {hero} was happy with {thing2.short}.",
        "[A good trade makes everyone happy|Everyone had got what they wanted].",
        "<end>",
    ),
    "{hero} traded {thing.a} for {food} and then traded the food for {thing2.a}.",
    (
        ("Who has the {thing} at the end?", "{friend} has the {thing}."),
        ("Who has the {thing2} at the end?", "{hero} has the {thing2}."),
        ("What did {hero} give to {adult}?", "{hero} gave {adult} {food}."),
        ("What did {hero} have at first?", "At first, {hero} had {thing.a}."),
    ),
)

RACE = Plot(
    "race",
    (
        "[Every {season}|Once a year], there was a [big|great] race in Alderbrook. The children ran from {place.the} to {place2.the}.",
        "{hero} and {friend} both wanted to win. [They practised every day|They were both fast].",
        '{adult} the {adult.kind} [rang a bell|clapped twice|called "Go!"], and the race began.',
        "[At first|In the beginning], {friend} was in front. {hero} was [close behind|right behind {friend.him}].",
        "¶",
        "Then {friend} [tripped over a root|slipped in the mud|fell over a stone] and hurt {friend.his} [knee|foot].",
        '{hero} could [win now|run on and win]. But {hero} stopped. "[Are you hurt|Can you stand], {friend}?" {hero.he} asked.',
        '"[My leg hurts|It hurts a little]," <said> {friend}. "[Run on, or you will lose|You can still win]!"',
        '"[A friend is more important than a race|We will finish together]," said {hero}, and helped {friend} up.',
        "¶",
        "They [walked|went] slowly {place2.to}, arm in arm. They were the last, but [everyone clapped|everyone cheered for them].",
        '{adult} gave them {food}. "[This is the prize for the best friends|You have won something better than a race]," said {adult}.',
        "<end>",
    ),
    "In a race, {friend} fell, and {hero} stopped to help, so they finished together.",
    (
        ("Who fell in the race?", "{friend} fell in the race."),
        ("Where did the race end?", "The race ended {place2.at}."),
        ("Where did the race start?", "The race started {place.at}."),
        ("What did {adult} give them?", "{adult} gave them {food}."),
    ),
)

DARK = Plot(
    "dark",
    (
        "{hero} was afraid of the dark. [Every night|At night], {hero.he} [heard strange sounds|saw shadows on the wall] and could not sleep.",
        "One evening, {hero} [told|spoke to] {adult} the {adult.kind} about it.",
        '"[I was afraid too when I was small|Many people are afraid of the dark]," said {adult}. "[Take this lantern|Here is a little lantern]. It will [help you|keep you company]."',
        "<thanks>",
        "¶",
        "That night, {hero} heard a sound outside. [Tap, tap, tap|Scratch, scratch]. {hero.His} heart beat fast.",
        "{hero} [took the lantern|held up the lantern] and [opened the door|looked out of the window]. [Who could it be|What was it]?",
        "It was only {pet} the {pet.kind}! {pet} was [cold|hungry|lonely] and wanted to come in.",
        '"[So it was you|You gave me a fright], {pet}," [laughed|said] {hero}. {hero.He} gave {pet} [some water|a blanket|a bit of bread].',
        "¶",
        "[Since then|After that night], {hero} was not afraid any more. [The dark is full of friends|A small light is enough|Most sounds have a simple reason].",
        "<end>",
    ),
    "{hero} was afraid of the dark until {hero.he} saw that the sound at night was only {pet} the {pet.kind}.",
    (
        ("What was {hero} afraid of?", "{hero} was afraid of the dark."),
        ("Who made the sound at night?", "{pet} the {pet.kind} made the sound."),
        ("Who gave {hero} the lantern?", "{adult} the {adult.kind} gave {hero} the lantern."),
    ),
)

MAP = Plot(
    "map",
    (
        "{hero} found an old map [in a book|in a dusty box|under a stone] {place.at}. It showed a red cross {out.at}.",
        '"[A treasure map|It must be a treasure]!" said {friend}. "[Let us go and look|We have to find it]!"',
        "They [packed|took] {food} and [a spade|a rope|a small lamp] and set off.",
        "?<way>",
        "First, the map led them {place2.to}. There they had to [turn left|count {number} steps|follow the stream].",
        "?{pet} the {pet.kind} [followed them|came with them] [all the way|and sniffed the ground].",
        "¶",
        "At last they were {out.at}. They [dug|looked and dug] [for a long time|until their arms were tired]. [Then there was a knock|Then the spade hit something hard].",
        "It was a [little|wooden|dusty] box. Inside lay {thing.a} and a note.",
        'The note said: "[Whoever finds this shall share it|The real treasure is a good friend|Well done, brave finder]. {adult}."',
        '"{adult} the {adult.kind}!" they [laughed|cried]. "[{adult.He} drew the map|It was {adult.his} game]!"',
        "¶",
        'They [ran|went] {work.to} and told {adult} everything. {adult} <smiled>. "[I hid it long ago|I hoped that someone would find it]. Keep the {thing}," {adult.he} said.',
        "<end>",
    ),
    "{hero} and {friend} followed an old map and found {thing.a} that {adult} had hidden {out.at}.",
    (
        ("Where did {hero} find the map?", "{hero} found the map {place.at}."),
        ("What was in the box?", "There was {thing.a} and a note in the box."),
        ("Who had drawn the map?", "{adult} the {adult.kind} had drawn the map."),
        ("Where was the treasure?", "The treasure was {out.at}."),
    ),
)
